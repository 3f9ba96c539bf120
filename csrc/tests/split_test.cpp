// How attention is cut: nothing is lost, costly pieces come first, and a thread keeps to its sequences.
#include "runtime/split.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "tests/check.h"

namespace legato {
namespace {

constexpr int32_t kHeads = 3, kThreads = 2;

// A decode step: the last position of each context.
struct Decode {
  std::vector<int32_t> positions, row_offsets{0};

  explicit Decode(const std::vector<int32_t>& contexts) {
    for (int32_t context : contexts) {
      positions.push_back(context - 1);
      row_offsets.push_back(static_cast<int32_t>(positions.size()));
    }
  }

  AttentionWork work() const {
    StepInput step;
    step.positions = positions;
    step.row_offsets = row_offsets;
    return split_attention(step, {kHeads, 3, 0, kThreads, 0});
  }
};

int32_t splits(const AttentionPiece& piece) { return piece.split_end - piece.split_begin; }

void every_head_of_every_sequence_once_costliest_first() {
  const AttentionWork work = Decode({700, 100, 1024, 90, 300, 1000, 80}).work();
  std::set<std::pair<int32_t, int32_t>> seen;
  for (size_t i = 0; i < work.pieces.size(); ++i) {
    const AttentionPiece& piece = work.pieces[i];
    CHECK(seen.insert({piece.sequence, piece.kv_head}).second);
    CHECK(i == 0 || splits(work.pieces[i - 1]) >= splits(piece));
  }
  CHECK(seen.size() == 7 * kHeads);
}

// The thread that has read a head's tiles goes on with those behind them.
void a_thread_takes_the_heads_of_its_sequences() {
  const AttentionWork work = Decode(std::vector<int32_t>(32, 1024)).work();
  CHECK(work.pieces.size() == 32 * kHeads);
  int32_t shared = 0;
  for (size_t i = kThreads; i < work.pieces.size(); ++i) {
    const AttentionPiece &before = work.pieces[i - kThreads], &piece = work.pieces[i];
    CHECK(piece.sequence * kHeads + piece.kv_head == before.sequence * kHeads + before.kv_head + 1);
  }
  for (size_t i = 0; i < work.pieces.size(); i += kThreads) shared += work.pieces[i].sequence >= 16;
  CHECK(shared == 0);
}

// Two prompts and two decodes; the window of 300 of the row at 555 begins where a split does.
struct Mixed {
  std::vector<int32_t> positions, row_offsets{0};

  Mixed() {
    for (const auto& [begin, end] : {std::pair{0, 40}, {800, 837}, {555, 556}, {5000, 5001}}) {
      for (int32_t p = begin; p < end; ++p) positions.push_back(p);
      row_offsets.push_back(static_cast<int32_t>(positions.size()));
    }
  }

  AttentionWork work(const AttentionShape& shape) const {
    StepInput step;
    step.positions = positions;
    step.row_offsets = row_offsets;
    return split_attention(step, shape);
  }
};

// Every split that a row sees is computed once for each head. What is written in parts has places of its own, within
// the room that there is, where the merge looks for them.
void whatever_is_cut_is_whole_again() {
  const Mixed step;
  for (const int32_t window : {0, 1, 256, 300}) {
    // Entries for none of the cut, for some, for all.
    for (const int64_t room : {int64_t{0}, int64_t{200}, int64_t{1} << 20}) {
      const AttentionShape shape{kHeads, 3, window, 8, room};
      const AttentionWork work = step.work(shape);
      std::multiset<std::vector<int32_t>> computed;  // (row, head, split)
      std::set<int64_t> taken;
      for (const AttentionPiece& piece : work.pieces) {
        CHECK(piece.row_end - piece.row_begin <= kAttentionRows && splits(piece) >= 1);
        const auto first_row = static_cast<size_t>(piece.row_begin), last_row = static_cast<size_t>(piece.row_end) - 1;
        CHECK(piece.split_begin >= first_split(step.positions[first_row], window));
        CHECK(piece.split_end <= last_split(step.positions[last_row]) + 1);
        const int64_t of_split = int64_t{piece.row_end - piece.row_begin} * shape.group_heads;
        for (int32_t split = piece.split_begin; split < piece.split_end; ++split) {
          for (int32_t row = piece.row_begin; row < piece.row_end; ++row) {
            computed.insert({row, piece.kv_head, split});
          }
        }
        if (piece.partial < 0) continue;
        for (int64_t i = 0; i < of_split * splits(piece); ++i) CHECK(taken.insert(piece.partial + i).second);
        CHECK(piece.partial + of_split * splits(piece) <= room);
        const auto of_piece = [&](const AttentionMerge& m) {
          return m.row_begin == piece.row_begin && m.row_end == piece.row_end && m.kv_head == piece.kv_head &&
                 m.partial + of_split * (piece.split_begin - m.split_begin) == piece.partial;
        };
        CHECK(std::count_if(work.merges.begin(), work.merges.end(), of_piece) == 1);
      }
      for (size_t row = 0; row < step.positions.size(); ++row) {
        const int32_t first = first_split(step.positions[row], window), last = last_split(step.positions[row]);
        for (int32_t head = 0; head < kHeads; ++head) {
          for (int32_t split = first; split <= last; ++split) {
            CHECK(computed.count({static_cast<int32_t>(row), head, split}) == 1);
          }
        }
      }
      CHECK(work.merges.empty() == (room == 0 || window == 1));
    }
  }
}

}  // namespace
}  // namespace legato

int main() {
  legato::every_head_of_every_sequence_once_costliest_first();
  legato::a_thread_takes_the_heads_of_its_sequences();
  legato::whatever_is_cut_is_whole_again();
}
