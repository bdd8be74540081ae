#include "engine/schedule/plan_file.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "engine/schedule/plan_text.hpp"

namespace troupe::engine {

result<plan> read_plan(const std::filesystem::path& file) {
  std::error_code none;
  if (std::filesystem::is_directory(file, none))
    return fail(errc::io_failed, file.string() + " cannot be read: is a directory");
  std::ifstream in(file, std::ios::binary);
  if (!in) return fail(errc::io_failed, file.string() + " cannot be read: " + std::strerror(errno));
  std::ostringstream text;
  text << in.rdbuf();
  return parse_checked(text.str()).map_error([&](const error& why) {
    return error_about(file.string(), why);
  });
}

}  // namespace troupe::engine
