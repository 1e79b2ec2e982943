// Digests of prefixes, and what is counted by them. No digest decides what is served: the index
// compares tokens. A collision costs a comparison, or one wrong figure in the statistics.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "types.hpp"

namespace kvcache {

// A keyed multiply-and-fold hash (the step of wyhash). The key is drawn for every core, so that
// no client can choose prompts that meet in one bucket.
class Digester {
 public:
  // `bits` below 32 make digests collide, for tests.
  explicit Digester(int bits) : mask_(static_cast<Digest>((std::uint64_t{1} << bits) - 1)) {
    std::random_device random;
    key_ = std::uint64_t{random()} << 32 | random();
  }

  // Of the prefix that ends with these bytes, from the digest of what comes before them.
  Digest chain(Digest previous, const void* bytes, std::size_t size) const {
    std::uint64_t state = fold(key_ ^ previous, 0xa0761d6478bd642f ^ size);
    auto* at = static_cast<const unsigned char*>(bytes);
    for (; size >= 16; size -= 16, at += 16) state = step(state, at, 16);
    return static_cast<Digest>(fold(step(state, at, size), 0x8ebc6af09c88c6e3) >> 32) & mask_;
  }

 private:
  static std::uint64_t fold(std::uint64_t left, std::uint64_t right) {
    const auto product = static_cast<unsigned __int128>(left) * right;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }

  // Mixes up to 16 bytes in.
  static std::uint64_t step(std::uint64_t state, const unsigned char* bytes, std::size_t size) {
    std::uint64_t words[2] = {0, 0};
    std::memcpy(words, bytes, size);
    return fold(state ^ words[0], 0xe7037ed1a0b428db ^ words[1]);
  }

  std::uint64_t key_;
  Digest mask_;
};

// Maps a digest to 0 .. size - 1 by its high bits: a table need not be a power of two large.
inline std::size_t slot_of(Digest digest, std::size_t size) {
  return static_cast<std::size_t>(std::uint64_t{digest} * size >> 32);
}

// How often each digest was added: open addressing, 8 bytes a slot.
class DigestCounts {
 public:
  std::uint32_t count(Digest digest) const { return slots_[find(digest)].count; }
  std::size_t size() const { return size_; }

  void add(Digest digest) {
    if (size_ + size_ / 4 >= slots_.size()) grow();
    Slot& slot = slots_[find(digest)];
    size_ += slot.count == 0;
    slot = {digest, slot.count + 1};
  }

  // The digest was added.
  void subtract(Digest digest) {
    std::size_t hole = find(digest);
    if (--slots_[hole].count > 0) return;
    --size_;
    // Moves later entries back over the hole, unless that would put them before their home.
    for (std::size_t at = next(hole); slots_[at].count > 0; at = next(at)) {
      const std::size_t home = slot_of(slots_[at].digest, slots_.size());
      const bool home_is_between = hole < at ? hole < home && home <= at : hole < home || home <= at;
      if (home_is_between) continue;
      slots_[hole] = std::exchange(slots_[at], Slot{});
      hole = at;
    }
  }

 private:
  struct Slot {
    Digest digest = 0;
    std::uint32_t count = 0;  // 0: empty
  };

  std::size_t next(std::size_t at) const { return at + 1 == slots_.size() ? 0 : at + 1; }

  std::size_t find(Digest digest) const {
    std::size_t at = slot_of(digest, slots_.size());
    while (slots_[at].count > 0 && slots_[at].digest != digest) at = next(at);
    return at;
  }

  void grow() {
    std::vector<Slot> smaller(slots_.size() + slots_.size() / 2 + 16);
    smaller.swap(slots_);
    for (const Slot& slot : smaller) {
      if (slot.count > 0) slots_[find(slot.digest)] = slot;
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(16);
  std::size_t size_ = 0;
};

}  // namespace kvcache
