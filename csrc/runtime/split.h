// How an op's work is cut into items for the thread pool. Cuts never change values (see kernels.h), only who computes
// them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/step.h"

namespace legato {

constexpr size_t kAheadBytes = 1 << 19;  // of weights that a thread asks for ahead, at most: of its second cache

// A matrix product of rows x panels in panel-major order of (panel, row tile): each thread has a run of almost equal
// length, so that also 15 panels keep two threads busy and each thread reads few weights. Items cut a thread's run
// where panels end, if it has as many: to come back to a panel for its other rows costs what it cost at first.
class LinearSplit {
 public:
  LinearSplit(int32_t rows, int32_t panels, int32_t threads);

  int64_t items() const { return items_; }

  // The panel that thread `thread` of the pool begins with; of the thread after the last, where the panels end.
  int32_t first_panel(int32_t thread) const {
    return thread < std::min<int64_t>(items_, threads_) ? static_cast<int32_t>(begin_of(thread, 0) / tiles_) : panels_;
  }

  // Calls fn(row_begin, row_end, panel_begin, panel_end, last) for the at most three rectangles of one item; `last`: it
  // is the last of its thread's.
  template <class Fn>
  void visit(int64_t item, Fn&& fn) const {
    const int64_t thread = item % threads_, index = item / threads_;  // see ThreadPool
    int64_t at = begin_of(thread, index);
    const int64_t end = begin_of(thread, index + 1);
    const bool last_item = item + threads_ >= items_;
    while (at < end) {
      const int64_t panel = at / tiles_, tile = at % tiles_;
      if (tile == 0 && end - at >= tiles_) {
        const int64_t last = end / tiles_;
        at = last * tiles_;
        fn(0, rows_, static_cast<int32_t>(panel), static_cast<int32_t>(last), last_item && at == end);
      } else {
        const int64_t stop = end < (panel + 1) * tiles_ ? end : (panel + 1) * tiles_;
        fn(row_of(tile), row_of(tile + stop - at), static_cast<int32_t>(panel), static_cast<int32_t>(panel + 1),
           last_item && stop == end);
        at = stop;
      }
    }
  }

 private:
  // Where item `index` of a thread begins: (panel, row tile) in units of row tiles.
  int64_t begin_of(int64_t thread, int64_t index) const;

  int32_t row_of(int64_t tile) const {
    return static_cast<int32_t>(tile * kTileRows < rows_ ? tile * kTileRows : rows_);
  }

  int32_t rows_;
  int32_t panels_;
  int64_t tiles_;
  int64_t units_;
  int64_t items_;
  int32_t threads_;
};

// One run of attention: rows of one sequence (at most kAttentionRows), one kv head, some splits of their positions.
struct AttentionPiece {
  int32_t row_begin, row_end;
  int32_t kv_head;
  int32_t split_begin, split_end;
  int32_t sequence;
  int64_t partial;  // index of its first partial entry, -1: writes the result itself
};

// The piece as the kernel takes it: the block table is that of its sequence, the scratch that of the thread.
inline AttentionItem item_of(const AttentionPiece& piece, const int32_t* block_table, float* scratch) {
  AttentionItem item{};
  item.row_begin = piece.row_begin;
  item.row_end = piece.row_end;
  item.kv_head = piece.kv_head;
  item.split_begin = piece.split_begin;
  item.split_end = piece.split_end;
  item.block_table = block_table;
  item.scratch = scratch;
  return item;
}

// Rows whose splits lie in several pieces: their partial entries are merged afterwards.
struct AttentionMerge {
  int32_t row_begin, row_end;
  int32_t kv_head;
  int32_t split_begin;  // of the first entry
  int64_t partial;
};

// The work of one attention op; the same for all layers of a step with the same group, heads and window.
struct AttentionWork {
  std::vector<AttentionPiece> pieces;  // costliest first; of one cost, those of a thread are neighbours
  std::vector<AttentionMerge> merges;

  // What the thread that has piece i takes after it, unless others help it; null: nothing.
  const AttentionPiece* after(int64_t i, int32_t threads) const {
    const size_t next = static_cast<size_t>(i + threads);
    return next < pieces.size() ? &pieces[next] : nullptr;
  }
};

struct AttentionShape {
  int32_t kv_heads;
  int32_t group_heads;  // q heads per kv head
  int32_t window;
  int32_t threads;
  int64_t partial_entries;  // room for this many

  bool operator==(const AttentionShape&) const = default;
};

AttentionWork split_attention(const StepInput& step, const AttentionShape& shape);

// Splits [first, last] that the row at `position` attends to.
int32_t first_split(int32_t position, int32_t window);
int32_t last_split(int32_t position);

}  // namespace legato
