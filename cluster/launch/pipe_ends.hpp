#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "messages/base/error.hpp"
#include "messages/descriptor.hpp"

namespace troupe::cluster {

/// Both close when another program is executed.
struct pipe_ends {
  descriptor read;
  descriptor write;
};

/// Errors: io_failed.
[[nodiscard]] inline result<pipe_ends> open_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    return fail(errc::io_failed, std::string("no pipe can be opened: ") + std::strerror(errno));
  return pipe_ends{descriptor(ends[0]), descriptor(ends[1])};
}

}  // namespace troupe::cluster
