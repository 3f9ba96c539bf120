// Philox4x32-10 (Salmon et al., 2011): the counter-based generator behind sampling.
#pragma once

#include <cstdint>

namespace legato {

// One uniform in [0, 1) for (seed, choice, position, attempt), the same as legato.sampling.uniform.
inline float philox_uniform(uint64_t seed, uint32_t choice, uint32_t position, uint32_t attempt) {
  uint32_t c[4] = {position, choice, attempt, 0};
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0], p1 = uint64_t{0xCD9E8D57} * c[2];
    const uint32_t next[4] = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ key0, static_cast<uint32_t>(p1),
                              static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ key1, static_cast<uint32_t>(p0)};
    for (int i = 0; i < 4; ++i) c[i] = next[i];
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return static_cast<float>(c[0] >> 8) * 0x1p-24f;
}

}  // namespace legato
