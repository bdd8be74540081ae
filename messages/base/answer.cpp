#include "messages/base/answer.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace troupe {

result<void> write_answer(std::string_view text) {
  errno = 0;
  const auto count = std::fwrite(text.data(), 1, text.size(), stdout);
  if (count == text.size() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  return fail(errc::io_failed, std::string("standard output took less than all of the answer: ") +
                                   std::strerror(errno != 0 ? errno : EIO) +
                                   "; make room where it goes, or send it elsewhere");
}

}  // namespace troupe
