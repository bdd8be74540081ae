#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "cluster/config/config_tables.hpp"

namespace troupe::cluster {

/// The words of an enumeration, in the order of its values.
template <class Enum>
inline constexpr std::span<const std::string_view> words_of{};
template <std::size_t Count>
using word_list = std::array<std::string_view, Count>;

template <>
inline constexpr word_list<2> words_of<placement>{"processes", "threads"};
template <>
inline constexpr word_list<2> words_of<memory_format>{"contiguous", "channels_last"};
template <>
inline constexpr word_list<3> words_of<engine::precision> = engine::precision_names;
template <>
inline constexpr word_list<6> words_of<lr_schedule>{"constant", "linear",    "step",
                                                    "cosine",   "one-cycle", "polynomial"};
template <>
inline constexpr word_list<5> words_of<transport>{"auto", "tcp", "shm", "loopback", "mixed"};
template <>
inline constexpr word_list<2> words_of<network>{"sealed", "trusted"};
template <>
inline constexpr word_list<2> words_of<nan_policy>{"stop", "skip"};
template <>
inline constexpr word_list<2> words_of<fault_policy>{"stop", "recover"};
template <>
inline constexpr word_list<2> words_of<reduce_order>{"ordered", "fast"};
template <>
inline constexpr word_list<3> words_of<edge_transport>{"link", "nccl", "ucx"};
template <>
inline constexpr word_list<2> words_of<norm_scope>{"local", "sync"};
template <>
inline constexpr word_list<5> words_of<launch_way>{"local", "ssh", "slurm", "mpi", "none"};
template <>
inline constexpr word_list<3> words_of<stream_proof>{"auto", "munge", "none"};
template <>
inline constexpr word_list<3> words_of<push_extent>{"nothing", "program", "all"};
template <>
inline constexpr word_list<2> words_of<checkpoint_storage>{"shared", "local"};

template <class Enum>
[[nodiscard]] constexpr std::string_view word_of(Enum value) noexcept {
  return words_of<Enum>[static_cast<std::size_t>(value)];
}

}  // namespace troupe::cluster
