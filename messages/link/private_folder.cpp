#include "messages/link/private_folder.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace troupe::messages {

bool is_private_folder(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == ::geteuid() && (status.st_mode & 077) == 0;
}

std::string socket_folder() {
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  // Names of sockets are short: a long folder is left for the usual one.
  const bool fits = runtime != nullptr && *runtime == '/' && std::strlen(runtime) < 48;
  const std::string base = fits && is_private_folder(runtime) ? runtime : "/tmp";
  return base + "/troupe-" + std::to_string(::geteuid());
}

bool make_private_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return false;
  return is_private_folder(path);
}

}  // namespace troupe::messages
