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

namespace words {
inline constexpr std::array<std::string_view, 2> placement{"processes", "threads"};
inline constexpr std::array<std::string_view, 2> memory_format{"contiguous", "channels_last"};
inline constexpr std::array<std::string_view, 6> lr_schedule{"constant", "linear",    "step",
                                                             "cosine",   "one-cycle", "polynomial"};
inline constexpr std::array<std::string_view, 5> transport{"auto", "tcp", "shm", "loopback",
                                                           "mixed"};
inline constexpr std::array<std::string_view, 2> network{"sealed", "trusted"};
inline constexpr std::array<std::string_view, 2> nan_policy{"stop", "skip"};
inline constexpr std::array<std::string_view, 2> fault_policy{"stop", "recover"};
inline constexpr std::array<std::string_view, 2> reduce_order{"ordered", "fast"};
inline constexpr std::array<std::string_view, 3> edge_transport{"link", "nccl", "ucx"};
inline constexpr std::array<std::string_view, 2> norm_scope{"local", "sync"};
inline constexpr std::array<std::string_view, 5> launch_way{"local", "ssh", "slurm", "mpi", "none"};
inline constexpr std::array<std::string_view, 3> stream_proof{"auto", "munge", "none"};
inline constexpr std::array<std::string_view, 3> push_extent{"nothing", "program", "all"};
inline constexpr std::array<std::string_view, 2> checkpoint_storage{"shared", "local"};
}  // namespace words

template <>
inline constexpr std::span<const std::string_view> words_of<placement>{words::placement};
template <>
inline constexpr std::span<const std::string_view> words_of<memory_format>{words::memory_format};
template <>
inline constexpr std::span<const std::string_view> words_of<engine::precision>{
    engine::precision_names};
template <>
inline constexpr std::span<const std::string_view> words_of<lr_schedule>{words::lr_schedule};
template <>
inline constexpr std::span<const std::string_view> words_of<transport>{words::transport};
template <>
inline constexpr std::span<const std::string_view> words_of<network>{words::network};
template <>
inline constexpr std::span<const std::string_view> words_of<nan_policy>{words::nan_policy};
template <>
inline constexpr std::span<const std::string_view> words_of<fault_policy>{words::fault_policy};
template <>
inline constexpr std::span<const std::string_view> words_of<reduce_order>{words::reduce_order};
template <>
inline constexpr std::span<const std::string_view> words_of<edge_transport>{words::edge_transport};
template <>
inline constexpr std::span<const std::string_view> words_of<norm_scope>{words::norm_scope};
template <>
inline constexpr std::span<const std::string_view> words_of<launch_way>{words::launch_way};
template <>
inline constexpr std::span<const std::string_view> words_of<stream_proof>{words::stream_proof};
template <>
inline constexpr std::span<const std::string_view> words_of<push_extent>{words::push_extent};
template <>
inline constexpr std::span<const std::string_view> words_of<checkpoint_storage>{
    words::checkpoint_storage};

template <class Enum>
[[nodiscard]] constexpr std::string_view word_of(Enum value) noexcept {
  return words_of<Enum>[static_cast<std::size_t>(value)];
}

}  // namespace troupe::cluster
