#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "cluster/training/measured_layers.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// The argument with which a program measures layers for another of its processes. The number of
/// samples and that process's own arguments follow it.
inline constexpr std::string_view measure_word = "--measure-layers";

/// What measure_activations gives, measured by a process of its own, so that this one never holds a
/// layer: a trainer has no weights. That process is this program, with the command line that the
/// config was read from; where that is not known, or names a file that can be read once only, it is
/// measured here. Errors: those of measure_activations; handler_failed where that process cannot be
/// started or was killed.
[[nodiscard]] result<measured_layers> measure_in_process(const layers_to_measure& what,
                                                         std::int64_t samples);

/// The main function of that process: writes the result of `measure` for so many samples, or its
/// error, to the descriptor that was handed to it. Returns the exit code.
[[nodiscard]] int answer_measuring(
    std::string_view samples,
    const std::function<result<engine::model_profile>(std::int64_t samples)>& measure);

}  // namespace troupe::cluster
