// The plan runner without Python: same bits however the work is cut, hostile files and steps, threads.
#include "runtime/runtime.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "base/cpu_features.h"
#include "tests/check.h"
#include "tests/tiny_engine.h"

namespace legato {
namespace {

const TinyEngine& tiny() {
  static const TinyEngine engine;
  return engine;
}

AlignedBuffer aligned_copy(const std::vector<uint8_t>& bytes) {
  AlignedBuffer copy(bytes.size());
  std::copy(bytes.begin(), bytes.end(), copy.as<uint8_t>());
  return copy;
}

EngineFile parse(const AlignedBuffer& bytes) { return EngineFile::parse({bytes.as<uint8_t>(), bytes.size()}); }

RuntimeOptions options(Isa isa, int32_t threads, int32_t block_size = 16) {
  return {isa, KvType::bf16, block_size, 1024 / block_size * 3, 64, 4, TinyEngine::kMaxPosition, threads, false};
}

// One step of some sequences; sequence s has all its blocks from the start, in an order of its own.
class Steps {
 public:
  Steps(int32_t block_size, int32_t seqs) : block_size_(block_size) {
    const int32_t blocks = TinyEngine::kMaxPosition / block_size;
    for (int32_t s = 0; s < seqs; ++s) {
      for (int32_t b = 0; b < blocks; ++b) tables_.push_back(s * blocks + (b * 5 + s) % blocks);
      table_offsets_.push_back((s + 1) * blocks);
    }
  }

  // Rows `count` of each listed sequence from its next position on; an output row for each sequence's last row.
  StepInput next(const std::vector<std::pair<int32_t, int32_t>>& work, std::vector<int32_t>& computed) {
    tokens_.clear(), positions_.clear(), slots_.clear(), row_offsets_ = {0}, seqs_.clear(), outs_.clear();
    offsets_ = {0}, blocks_.clear();
    for (auto [seq, count] : work) {
      const int32_t begin = table_offsets_[static_cast<size_t>(seq)],
                    end = table_offsets_[static_cast<size_t>(seq) + 1];
      for (int32_t i = 0; i < count; ++i) {
        const int32_t p = computed[static_cast<size_t>(seq)]++;
        tokens_.push_back((p * 7 + seq * 3) % TinyEngine::kVocab);
        positions_.push_back(p);
        const int64_t block = tables_[static_cast<size_t>(begin + p / block_size_)];
        slots_.push_back(block * block_size_ + p % block_size_);
      }
      row_offsets_.push_back(static_cast<int32_t>(tokens_.size()));
      seqs_.push_back(seq);
      outs_.push_back(static_cast<int32_t>(tokens_.size()) - 1);
      blocks_.insert(blocks_.end(), tables_.begin() + begin, tables_.begin() + end);
      offsets_.push_back(static_cast<int32_t>(blocks_.size()));
    }
    purposes_.assign(outs_.size(), 0);
    StepInput step;
    step.step_id = ++id_;
    step.tokens = tokens_, step.positions = positions_, step.kv_slots = {slots_};
    step.row_offsets = row_offsets_, step.seq_slots = seqs_, step.block_tables = {{offsets_, blocks_}};
    step.out_rows = outs_, step.out_purposes = purposes_, step.out_params = seqs_;
    for (int32_t seq : seqs_) {
      SlotReset reset{};
      reset.slot = seq;
      reset.params.repetition_penalty = 1.2f;
      reset.params.num_logprobs = 2;
      reset.params.temperature = seq == 0 ? 0.0f : 0.8f;
      if (computed[static_cast<size_t>(seq)] <= 64) step.resets.push_back(reset);
    }
    return step;
  }

 private:
  int32_t block_size_;
  int64_t id_ = 0;
  std::vector<int32_t> tables_, table_offsets_ = {0};
  std::vector<int32_t> tokens_, positions_, row_offsets_, seqs_, outs_, offsets_, blocks_;
  std::vector<int64_t> slots_;
  std::vector<int8_t> purposes_;
};

// Logits after 600 positions of sequence 0, computed in chunks beside two other sequences.
std::vector<float> last_logits(const RuntimeOptions& opts, int32_t chunk, bool crowd) {
  const AlignedBuffer bytes = aligned_copy(tiny().bytes());
  Runtime runtime(parse(bytes), opts);
  Steps steps(opts.block_size, 3);
  std::vector<int32_t> computed(3);
  while (computed[0] < 600) {
    std::vector<std::pair<int32_t, int32_t>> work = {{0, std::min(chunk, 600 - computed[0])}};
    if (crowd) work.insert(work.end(), {{1, 1}, {2, 20}});
    const StepInput step = steps.next(work, computed);
    runtime.launch(step);
    const StepOutput out = runtime.collect(step.step_id);
    CHECK(out.error.empty());
    CHECK(
        std::all_of(out.tokens.begin(), out.tokens.end(), [](int32_t t) { return t >= 0 && t < TinyEngine::kVocab; }));
    CHECK(std::all_of(out.faults.begin(), out.faults.end(), [](uint8_t fault) { return fault == 0; }));
  }
  std::vector<float> logits = runtime.logits();
  logits.resize(TinyEngine::kVocab);
  return logits;
}

void work_may_be_cut_in_any_way() {
  for (int32_t level = 0; level < kIsaCount; ++level) {
    const Isa isa = static_cast<Isa>(level);
    if (isa_obstacle(isa) != nullptr) continue;
    const std::vector<float> expected = last_logits(options(isa, 1), 64, false);
    const auto [low, high] = std::minmax_element(expected.begin(), expected.end());
    CHECK(*high - *low > 0.1f);
    CHECK(last_logits(options(isa, 3), 64, false) == expected);
    CHECK(last_logits(options(isa, 2), 23, true) == expected);
    CHECK(last_logits(options(isa, 3, 64), 40, true) == expected);
  }
}

void a_model_and_its_file_go_in_any_order() {
  const AlignedBuffer bytes = aligned_copy(tiny().bytes());
  Steps steps(16, 1), others(16, 1);  // must outlive the step in flight
  Runtime first(parse(bytes), options(Isa::portable, 2)), second(parse(bytes), options(Isa::portable, 2));
  std::vector<int32_t> computed(1), others_computed(1);
  const StepInput a = steps.next({{0, 30}}, computed), b = others.next({{0, 30}}, others_computed);
  first.launch(a);
  second.launch(b);
  CHECK(second.collect(b.step_id).tokens == first.collect(a.step_id).tokens);
  first.launch(a);  // in flight when the runtime goes
}

void buffers_that_are_live_together_do_not_overlap() {
  const AlignedBuffer bytes = aligned_copy(tiny().bytes());
  const EngineFile file = parse(bytes);
  const auto live = buffer_liveness(file.plan());
  const WorkspacePlan layout = plan_workspace(file.plan(), *kernel_table(Isa::portable), 64, 4);
  size_t apart = 0;
  for (size_t a = 0; a < layout.places.size(); ++a) {
    const BufferPlace& place = layout.places[a];
    CHECK(place.data % kAlignment == 0 && place.data + place.bytes <= layout.bytes);
    apart += place.bytes;
    for (size_t b = 0; b < a; ++b) {
      const BufferPlace& other = layout.places[b];
      const bool together = std::any_of(live.begin(), live.end(), [&](const auto& l) { return l[a] && l[b]; });
      CHECK(!together || place.data + place.bytes <= other.data || other.data + other.bytes <= place.data);
    }
  }
  CHECK(layout.bytes < apart);
}

void linear_items_cover_each_unit_once() {
  for (int32_t rows : {1, 5, 6, 7, 64, 512}) {
    for (int32_t panels : {1, 9, 15, 768}) {
      for (int32_t threads : {1, 2, 3, 16}) {
        const LinearSplit split(rows, panels, threads);
        std::vector<int> seen(static_cast<size_t>(rows) * static_cast<size_t>(panels));
        for (int64_t item = 0; item < split.items(); ++item) {
          split.visit(item, [&](int32_t row_begin, int32_t row_end, int32_t panel_begin, int32_t panel_end, bool) {
            for (int32_t p = panel_begin; p < panel_end; ++p) {
              for (int32_t r = row_begin; r < row_end; ++r) ++seen[static_cast<size_t>(p * rows + r)];
            }
          });
        }
        CHECK(std::all_of(seen.begin(), seen.end(), [](int count) { return count == 1; }));
        CHECK(split.items() >= std::min<int64_t>(threads, panels));
      }
    }
  }
}

// What a thread asks for ahead is what it then reads: its items follow each other from its first panel on.
void linear_items_of_a_thread_are_neighbours() {
  for (int32_t rows : {1, 6, 512}) {
    for (int32_t panels : {2, 5, 9, 768}) {
      for (int32_t threads : {1, 2, 3, 16}) {
        const LinearSplit split(rows, panels, threads);
        for (int32_t thread = 0; thread < threads; ++thread) {
          int32_t at = split.first_panel(thread);
          bool ended = false;
          for (int64_t item = thread; item < split.items(); item += threads) {
            split.visit(item, [&](int32_t, int32_t, int32_t panel_begin, int32_t panel_end, bool last) {
              CHECK(!ended);
              CHECK(panel_begin == at || panel_begin == at - 1);  // two items may share a panel's rows
              at = panel_end;
              ended = last;
            });
          }
          CHECK(ended == (thread < split.items()));
          const int32_t after = split.first_panel(thread + 1);
          CHECK(after == at || after == at - 1);
        }
      }
    }
  }
}

// Of as many panels as items, only those where one thread's run ends and the next begins are met twice.
void linear_items_end_with_their_panels() {
  for (int32_t rows : {64, 128, 512}) {
    for (int32_t panels : {9, 15, 24}) {
      const LinearSplit split(rows, panels, 2);
      std::vector<int> meetings(static_cast<size_t>(panels));
      for (int64_t item = 0; item < split.items(); ++item) {
        split.visit(item, [&](int32_t, int32_t, int32_t panel_begin, int32_t panel_end, bool) {
          for (int32_t p = panel_begin; p < panel_end; ++p) ++meetings[static_cast<size_t>(p)];
        });
      }
      CHECK(std::count_if(meetings.begin(), meetings.end(), [](int count) { return count > 1; }) <= 1);
    }
  }
}

template <class Error, class Fn>
bool throws(Fn&& fn) {
  try {
    fn();
  } catch (const Error&) {
    return true;
  }
  return false;
}

void calls_out_of_order_are_refused() {
  const AlignedBuffer bytes = aligned_copy(tiny().bytes());
  Runtime runtime(parse(bytes), options(Isa::portable, 1));
  Steps steps(16, 1);
  std::vector<int32_t> computed(1);
  StepInput step = steps.next({{0, 3}}, computed);
  CHECK(throws<std::logic_error>([&] { runtime.collect(1); }));
  runtime.launch(step);
  CHECK(throws<std::logic_error>([&] { runtime.launch(step); }));
  CHECK(throws<std::logic_error>([&] { runtime.sample_again({}); }));
  CHECK(throws<std::logic_error>([&] { runtime.logits(); }));
  CHECK(throws<std::logic_error>([&] { runtime.num_kept_logits(); }));
  CHECK(throws<std::logic_error>([&] { runtime.kv_block(0, 0); }));
  CHECK(throws<std::logic_error>([&] { runtime.profile(); }));
  CHECK(throws<std::logic_error>([&] { runtime.reset_profile(); }));
  runtime.collect(step.step_id);
  CHECK(runtime.logits().size() == static_cast<size_t>(TinyEngine::kVocab * runtime.num_kept_logits()));
  CHECK(!runtime.kv_block(0, 0).empty());
  CHECK(runtime.profile().steps == 1);
  runtime.reset_profile();
  CHECK(runtime.profile().steps == 0);
  const std::vector<int32_t> wrong = {1, 2, TinyEngine::kVocab};
  step.tokens = wrong;
  CHECK(throws<std::invalid_argument>([&] { runtime.launch(step); }));
  RuntimeOptions none = options(Isa::portable, 1);
  none.num_blocks = 0;
  CHECK(throws<std::invalid_argument>([&] { Runtime(parse(bytes), none); }));
}

// Every word of header and records replaced in turn. What is still accepted must also run.
void hostile_files_do_no_harm() {
  size_t refused = 0, accepted = 0;
  for (size_t at = 0; at < tiny().data_begin(); at += 4) {
    for (uint32_t value : {0u, 1u, 2u, 33u, 64u, 0x7fffffffu, 0x80000000u, 0xffffffffu}) {
      std::vector<uint8_t> changed = tiny().bytes();
      std::copy_n(reinterpret_cast<const uint8_t*>(&value), 4, changed.begin() + static_cast<std::ptrdiff_t>(at));
      if (at < 32 || at >= 64) TinyEngine::sign(changed);
      const AlignedBuffer bytes = aligned_copy(changed);
      try {
        const EngineFile file = parse(bytes);
        RuntimeOptions opts = options(Isa::portable, 1);
        opts.max_position = std::min(opts.max_position, file.plan().max_position);
        if (file.plan().vocab != TinyEngine::kVocab || opts.max_position < 40 || file.plan().groups.size() != 1)
          continue;
        Model model(file, opts);
        Steps steps(16, 1);
        std::vector<int32_t> computed(1);
        const StepInput step = steps.next({{0, 40}}, computed);
        check_step(step, model.limits());
        model.run(step);
        ++accepted;
      } catch (const EngineFileError&) {
        ++refused;
      }
    }
  }
  CHECK(refused > 1000 && accepted > 100);
  for (size_t size : {size_t{0}, size_t{63}, size_t{319}, tiny().data_begin(), tiny().bytes().size() - 1}) {
    const AlignedBuffer bytes =
        aligned_copy({tiny().bytes().begin(), tiny().bytes().begin() + static_cast<int64_t>(size)});
    CHECK(throws<EngineFileError>([&] { parse(bytes); }));
  }
}

}  // namespace
}  // namespace legato

int main() {
  legato::buffers_that_are_live_together_do_not_overlap();
  legato::linear_items_cover_each_unit_once();
  legato::linear_items_of_a_thread_are_neighbours();
  legato::linear_items_end_with_their_panels();
  legato::work_may_be_cut_in_any_way();
  legato::a_model_and_its_file_go_in_any_order();
  legato::calls_out_of_order_are_refused();
  legato::hostile_files_do_no_harm();
}
