// How attention is cut: nothing is lost, costly pieces come first, and a thread keeps to its sequences.
#include "runtime/split.h"

#include <set>
#include <utility>

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

}  // namespace
}  // namespace legato

int main() {
  legato::every_head_of_every_sequence_once_costliest_first();
  legato::a_thread_takes_the_heads_of_its_sequences();
}
