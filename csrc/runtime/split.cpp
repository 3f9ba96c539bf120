#include "runtime/split.h"

#include <algorithm>

namespace legato {
namespace {

constexpr int64_t kItemsPerThread = 4;  // lets a thread that was held up be helped out

int64_t cost(const AttentionPiece& piece) {
  return int64_t{piece.row_end - piece.row_begin} * (piece.split_end - piece.split_begin);
}

// Every tile of rows with every kv head, uncut.
std::vector<AttentionPiece> whole_pieces(const StepInput& step, const AttentionShape& shape) {
  std::vector<AttentionPiece> pieces;
  for (size_t s = 0; s + 1 < step.row_offsets.size(); ++s) {
    for (int32_t r = step.row_offsets[s]; r < step.row_offsets[s + 1]; r += kAttentionRows) {
      const int32_t end = std::min(r + kAttentionRows, step.row_offsets[s + 1]);
      const int32_t first = first_split(step.positions[static_cast<size_t>(r)], shape.window);
      const int32_t last = last_split(step.positions[static_cast<size_t>(end) - 1]);
      for (int32_t h = 0; h < shape.kv_heads; ++h) {
        pieces.push_back({r, end, h, first, last + 1, static_cast<int32_t>(s), -1});
      }
    }
  }
  return pieces;
}

// A thread of the pool takes every threads-th piece. Of pieces that cost the same these become neighbours: the tiles of
// a sequence's KV heads lie one behind another, and what the hardware reads past those of one head is read next.
void give_neighbours(std::vector<AttentionPiece>& pieces, int32_t threads) {
  const std::vector<AttentionPiece> sorted = pieces;
  const auto stride = static_cast<size_t>(threads);
  for (size_t begin = 0, end; begin < sorted.size(); begin = end) {
    end = begin + 1;
    while (end < sorted.size() && cost(sorted[end]) == cost(sorted[begin])) ++end;
    size_t taken = begin;
    for (size_t first = begin; first < std::min(end, begin + stride); ++first) {
      for (size_t i = first; i < end; i += stride) pieces[i] = sorted[taken++];
    }
  }
}

}  // namespace

LinearSplit::LinearSplit(int32_t rows, int32_t panels, int32_t threads)
    : rows_(rows),
      panels_(panels),
      tiles_((rows + kTileRows - 1) / kTileRows),
      units_(panels * tiles_),
      threads_(threads) {
  items_ = threads == 1 ? std::min<int64_t>(units_, 1) : std::min(units_, threads * kItemsPerThread);
}

int64_t LinearSplit::begin_of(int64_t thread, int64_t index) const {
  const int64_t runs = std::min<int64_t>(threads_, items_);
  const int64_t begin = thread * units_ / runs, end = (thread + 1) * units_ / runs;
  const int64_t count = items_ / threads_ + (thread < items_ % threads_ ? 1 : 0);
  if (index == count) return end;
  const int64_t at = begin + index * (end - begin) / count;
  if (index == 0 || end - begin < count * tiles_) return at;
  return std::min(end, (at + tiles_ / 2) / tiles_ * tiles_);
}

int32_t first_split(int32_t position, int32_t window) {
  return window > 0 ? std::max(0, position - window + 1) / kKvSplit : 0;
}

int32_t last_split(int32_t position) { return position / kKvSplit; }

AttentionWork split_attention(const StepInput& step, const AttentionShape& shape) {
  AttentionWork work;
  std::vector<AttentionPiece> whole = whole_pieces(step, shape);
  int64_t total = 0;
  for (const AttentionPiece& piece : whole) total += cost(piece);
  const int64_t limit = std::max<int64_t>(1, total / (shape.threads * kItemsPerThread));

  int64_t used = 0;
  for (AttentionPiece& piece : whole) {
    const int64_t rows = piece.row_end - piece.row_begin;
    const int64_t per_split = rows * shape.group_heads;
    const int64_t entries = per_split * (piece.split_end - piece.split_begin);
    if (shape.threads == 1 || cost(piece) <= limit || piece.split_end - piece.split_begin == 1 ||
        used + entries > shape.partial_entries) {
      work.pieces.push_back(piece);
      continue;
    }
    work.merges.push_back({piece.row_begin, piece.row_end, piece.kv_head, piece.split_begin, used});
    const auto step_splits = static_cast<int32_t>(std::max<int64_t>(1, limit / rows));
    for (int32_t split = piece.split_begin; split < piece.split_end; split += step_splits) {
      AttentionPiece part = piece;
      part.split_begin = split;
      part.split_end = std::min(split + step_splits, piece.split_end);
      part.partial = used + per_split * (split - piece.split_begin);
      work.pieces.push_back(part);
    }
    used += entries;
  }
  std::stable_sort(work.pieces.begin(), work.pieces.end(),
                   [](const AttentionPiece& a, const AttentionPiece& b) { return cost(a) > cost(b); });
  give_neighbours(work.pieces, shape.threads);
  return work;
}

}  // namespace legato
