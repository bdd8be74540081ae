#include "engine/state/output_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <system_error>

namespace troupe::engine {
namespace {

namespace fs = std::filesystem;

constexpr int most_links = 40;  // as many as Linux follows

std::string reason(int number) {
  return std::generic_category().message(number);
}

// What the kernel refuses to open where fs.protected_symlinks is set: another user could have put
// the link there to have us replace a file of ours.
bool is_strangers(const fs::path& link, const struct stat& about) {
  struct stat folder {};
  if (::stat(folder_of(link).c_str(), &folder) != 0) return true;
  const bool is_everybodys = (folder.st_mode & S_ISVTX) != 0 && (folder.st_mode & S_IWOTH) != 0;
  return is_everybodys && about.st_uid != ::geteuid() && about.st_uid != folder.st_uid;
}

std::optional<struct stat> look_at(const fs::path& file) {
  struct stat about {};
  if (::stat(file.c_str(), &about) != 0) return std::nullopt;
  return about;
}

}  // namespace

result<fs::path> behind_links(const fs::path& file) {
  fs::path at = file;
  const auto refuse = [&file](const std::string& why) {
    return fail(errc::io_failed, "cannot write " + file.string() + ": " + why);
  };
  for (int followed = 0; followed < most_links; ++followed) {
    struct stat about {};
    if (::lstat(at.c_str(), &about) != 0) {
      if (errno == ENOENT) return at;
      return refuse(reason(errno));
    }
    if (!S_ISLNK(about.st_mode)) return at;
    if (is_strangers(at, about))
      return refuse(at.string() +
                    " is another user's link, in a folder that everybody may write to");
    std::error_code error;
    const auto target = fs::read_symlink(at, error);
    if (error) return refuse(error.message());
    at = target.is_absolute() ? target : folder_of(at) / target;
  }
  return refuse(reason(ELOOP));
}

std::string kind_of_special(const fs::path& file) {
  const auto about = look_at(file);
  if (!about || S_ISREG(about->st_mode)) return "";
  if (S_ISDIR(about->st_mode)) return "a directory";
  if (S_ISFIFO(about->st_mode)) return "a FIFO";
  if (S_ISSOCK(about->st_mode)) return "a socket";
  return "a device";
}

std::string why_not_replaceable(const fs::path& file) {
  if (const auto kind = kind_of_special(file); !kind.empty()) return "is " + kind;
  const auto folder_given = folder_of(file);
  std::error_code error;
  if (!fs::exists(folder_given, error))
    return "the directory " + folder_given.string() + " does not exist";
  if (!fs::is_directory(folder_given, error)) return folder_given.string() + " is not a directory";
  const auto target = behind_links(file);
  if (!target) {
    const auto& text = target.error().text;
    return text.substr(std::string("cannot write " + file.string() + ": ").size());
  }
  const auto folder = folder_of(*target);
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return "";
  if (errno == ENOENT) return "the directory " + folder.string() + " does not exist";
  return "the directory " + folder.string() + " cannot be written: " + reason(errno);
}

std::string why_no_folder(const fs::path& folder) {
  std::error_code error;
  const auto whole = fs::absolute(folder, error).lexically_normal();
  for (auto at = whole;; at = at.parent_path()) {
    const auto about = look_at(at);
    if (!about && (errno == ENOENT || errno == ENOTDIR) && at.has_relative_path()) continue;
    if (!about) return reason(errno);
    const auto called = at == whole ? "it" : at.string();
    if (!S_ISDIR(about->st_mode)) return called + " is not a directory";
    if (::access(at.c_str(), W_OK | X_OK) == 0) return "";
    return "the directory " + at.string() + " cannot be written: " + reason(errno);
  }
}

bool is_same_file(const fs::path& one, const fs::path& other) {
  const auto first = behind_links(one);
  const auto second = behind_links(other);
  if (!first || !second) return false;
  const auto here = look_at(*first);
  const auto there = look_at(*second);
  if (here && there) return here->st_dev == there->st_dev && here->st_ino == there->st_ino;
  if (here || there) return false;
  const auto folder = look_at(folder_of(*first));
  const auto other_folder = look_at(folder_of(*second));
  return folder && other_folder && folder->st_dev == other_folder->st_dev &&
         folder->st_ino == other_folder->st_ino && first->filename() == second->filename();
}

}  // namespace troupe::engine
