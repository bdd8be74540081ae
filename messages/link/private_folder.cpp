#include "messages/link/private_folder.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace troupe::messages {

bool is_private_folder(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         status.st_uid == ::geteuid() && (status.st_mode & 077) == 0;
}

bool make_private_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return false;
  return is_private_folder(path);
}

}  // namespace troupe::messages
