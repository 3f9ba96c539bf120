#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/aligned.h"
#include "base/cpu_features.h"
#include "tests/check.h"

namespace legato {
namespace {

void buffers_are_aligned_and_zeroed() {
  for (Pages pages : {Pages::normal, Pages::huge}) {
    for (size_t size : {size_t{1}, size_t{100}, size_t{5} << 20}) {
      AlignedBuffer buffer(size, pages);
      CHECK(buffer.size() == size);
      CHECK(reinterpret_cast<uintptr_t>(buffer.data()) % kAlignment == 0);
      for (size_t i = 0; i < size; ++i) CHECK(buffer.as<char>()[i] == 0);
      std::memset(buffer.data(), 1, size);
      const std::byte* data = buffer.data();
      AlignedBuffer moved(std::move(buffer));
      CHECK(moved.data() == data && moved.size() == size);
      AlignedBuffer assigned(64);
      assigned = std::move(moved);
      CHECK(assigned.data() == data && assigned.as<char>()[size - 1] == 1);
    }
  }
  CHECK(AlignedBuffer().data() == nullptr && AlignedBuffer(0, Pages::huge).data() == nullptr);
}

void an_impossible_mapping_is_refused() {
  bool refused = false;
  try {
    AlignedBuffer buffer(SIZE_MAX - 1, Pages::huge);
  } catch (const std::bad_alloc&) {
    refused = true;
  }
  CHECK(refused);
}

std::string refusal(const char* forced) {
  try {
    choose_isa(forced);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

void a_level_is_chosen_or_refused_by_name() {
  CHECK(isa_obstacle(Isa::portable) == nullptr);
  CHECK(choose_isa("portable") == Isa::portable);
  CHECK(choose_isa(nullptr) == choose_isa(""));
  CHECK(isa_obstacle(choose_isa(nullptr)) == nullptr);
  CHECK(refusal("sse9").find("'sse9'") != std::string::npos);
  for (int32_t i = 0; i < kIsaCount; ++i) {
    const Isa isa = static_cast<Isa>(i);
    if (isa_obstacle(isa) == nullptr) {
      CHECK(choose_isa(isa_name(isa)) == isa && (choose_isa(nullptr) >= isa || isa == Isa::avx512_bf16));
    } else {
      CHECK(refusal(isa_name(isa)).find(isa_obstacle(isa)) != std::string::npos);
    }
  }
  if (isa_obstacle(Isa::avx512_bf16) == nullptr) CHECK(choose_isa("bf16") == Isa::avx512_bf16);
  if (isa_obstacle(Isa::avx512_vnni) == nullptr) CHECK(choose_isa("vnni") == Isa::avx512_vnni);
}

}  // namespace
}  // namespace legato

int main() {
  legato::buffers_are_aligned_and_zeroed();
  legato::an_impossible_mapping_is_refused();
  legato::a_level_is_chosen_or_refused_by_name();
}
