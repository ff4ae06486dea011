// Checking positions without making anything of them, and knowing them again.
#pragma once

#include <cstdint>

namespace topkast {

// A number for the content of positions and flags: other content has another one, but for one case in 2^64. Throws
// std::invalid_argument unless the positions are in [0, numel) and strictly increasing.
template <typename Index>
uint64_t inspect(int64_t numel, const Index* positions, const uint8_t* active, int64_t num_slots);

// The same for a sample of it, 64 runs of 64 elements spread evenly, at a cost that does not grow: content that was
// replaced has another one. Nothing is checked.
constexpr int64_t glance_blocks = 64, glance_length = 64;
uint64_t glance(const void* positions, int64_t index_bytes, const uint8_t* active, int64_t num_slots);

}  // namespace topkast
