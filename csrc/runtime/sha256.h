// SHA-256 (FIPS 180-4), for the hashes of an engine file's header and records.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace legato {

std::array<uint8_t, 32> sha256(std::span<const uint8_t> data);

}  // namespace legato
