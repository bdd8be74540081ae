#pragma once

#include <chrono>
#include <filesystem>
#include <string_view>

#include "actors/base/deadlines.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// The argument that makes a program of Troupe write `identity` as a line to standard output, and
/// end.
inline constexpr const char* identity_word = "--identity";
inline constexpr std::string_view identity = "a program of Troupe";

/// Whether an executable is a program of Troupe, one whose main calls troupe::main. Where its file
/// does not show that, it is started and asked. What would take `launch`'s flags for its own could
/// end well and have trained nothing. Waits for the answer, for so long at most. Errors: bad_config
/// with what the program did instead, such as the loader's word on a library that it lacks.
[[nodiscard]] result<void> check_identity(
    const std::filesystem::path& program,
    std::chrono::milliseconds patience = actors::usual_deadlines.identify);

}  // namespace troupe::cluster
