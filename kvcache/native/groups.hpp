// What each group of tenants is guaranteed, what it may use at most, and what it uses.
#pragma once

#include <algorithm>
#include <array>

#include "types.hpp"

namespace kvcache {

// Every block that is not FREE is charged to the group of its class.
class Groups {
 public:
  static constexpr std::int64_t kNoQuota = -1;

  struct Group {
    std::int64_t floor_blocks = 0;
    std::int64_t quota_blocks = kNoQuota;
    std::int64_t in_use = 0;  // neither CACHED nor EXPECTED
    std::int64_t cached = 0;
    std::int64_t expected = 0;
    std::int64_t charged() const { return in_use + cached + expected; }
  };

  const Group& at(int group) const { return groups_[static_cast<std::size_t>(group)]; }

  void set(int group, std::int64_t floor_blocks, std::int64_t quota_blocks) {
    Group& changed = groups_[static_cast<std::size_t>(group)];
    changed.floor_blocks = floor_blocks;
    changed.quota_blocks = quota_blocks;
    const std::uint32_t bit = std::uint32_t{1} << group;
    with_floor_ = floor_blocks > 0 ? with_floor_ | bit : with_floor_ & ~bit;
  }

  // A block of the group comes into a state, or (-1) leaves it.
  void count(int group, BlockState state, int change) {
    if (state == BlockState::kFree) return;
    Group& charged = groups_[static_cast<std::size_t>(group)];
    (state == BlockState::kCached ? charged.cached : state == BlockState::kExpected ? charged.expected : charged.in_use) += change;
  }

  // Of `idle` blocks that are FREE, CACHED or EXPECTED, those that the group can have, but for
  // what the floors of others lack. May be negative.
  std::int64_t spare(int group, std::int64_t idle) const {
    each_other_floor(group, [&](const Group& other) { idle -= std::max<std::int64_t>(0, other.floor_blocks - other.in_use); });
    return idle;
  }

  // What the quota of the group leaves of `blocks`, when `taken` of it are gone or about to be.
  std::int64_t within_quota(int group, std::int64_t blocks, std::int64_t taken) const {
    const std::int64_t quota = at(group).quota_blocks;
    return quota == kNoQuota ? blocks : std::min(blocks, quota - taken);
  }

  // The blocks that are free once everything is evicted that the group can have: `free` are free
  // and `cached` CACHED now.
  std::int64_t reachable(int group, std::int64_t free, std::int64_t cached) const {
    std::int64_t most = free + cached;
    each_other_floor(group, [&](const Group& other) {
      const std::int64_t above = std::max<std::int64_t>(0, other.charged() - other.floor_blocks);
      most -= std::max<std::int64_t>(0, other.cached - above);
    });
    return most;
  }

  // How many more blocks the group would have than its quota allows.
  std::int64_t excess(int group, std::int64_t more) const {
    const Group& own = at(group);
    return own.quota_blocks == kNoQuota ? 0 : own.charged() + more - own.quota_blocks;
  }

  // The groups (a bit each) that must give up cached blocks for this one: it itself, and those
  // that have more than they are guaranteed.
  std::uint32_t evictable_for(int group) const {
    std::uint32_t evictable = ~std::uint32_t{0};
    for (std::uint32_t left = with_floor_; left != 0; left &= left - 1) {
      const int other = __builtin_ctz(left);
      if (other != group && at(other).charged() <= at(other).floor_blocks) evictable &= ~(std::uint32_t{1} << other);
    }
    return evictable;
  }

 private:
  template <typename Visit>
  void each_other_floor(int group, Visit visit) const {
    for (std::uint32_t left = with_floor_ & ~(std::uint32_t{1} << group); left != 0; left &= left - 1) {
      visit(at(__builtin_ctz(left)));
    }
  }

  std::array<Group, kGroups> groups_{};
  std::uint32_t with_floor_ = 0;  // a bit for each group that is guaranteed something
};

}  // namespace kvcache
