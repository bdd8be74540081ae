#pragma once

#include <cstdint>
#include <string>

namespace troupe::engine {

/// What to do where the system starts no more threads, in brackets: "(ulimit -u 94, ..)", with a
/// value that allows this process's user so many more than there can be now.
[[nodiscard]] std::string raise_threads(std::uint64_t more);

}  // namespace troupe::engine
