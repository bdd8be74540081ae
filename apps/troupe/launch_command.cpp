#include "apps/troupe/launch_command.hpp"

#include <toml++/toml.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "cluster/launch/find_program.hpp"

namespace troupe::apps {
namespace {

struct named_program {
  std::string word;
  std::string where;  ///< Who named it, for errors.
};

result<named_program> program_of(const std::filesystem::path& file) {
  const auto refuse = [&file](const std::string& why) {
    return fail(errc::bad_config, file.string() + why);
  };
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) return refuse(" is a directory, not a file");
  if (::access(file.c_str(), R_OK) != 0)
    return refuse(std::string(" cannot be read: ") + std::strerror(errno));
  try {
    const auto root = toml::parse_file(file.string());
    const auto named = root["cluster"]["program"];
    if (!named)
      return refuse(
          ": cluster.program is left out; name the program to run (program = \"..\" in "
          "[cluster])");
    const std::string at = file.string() + ":" + std::to_string(named.node()->source().begin.line) +
                           ": cluster.program: ";
    if (!named.is_string() || named.as_string()->get().empty())
      return fail(errc::bad_config, at + "is no text; name the program to run");
    return named_program{named.as_string()->get(), at};
  } catch (const toml::parse_error& wrong) {
    std::string why(wrong.description());
    std::replace(why.begin(), why.end(), '\n', ' ');
    return refuse(":" + std::to_string(wrong.source().begin.line) + ": not valid TOML: " + why);
  }
}

result<std::filesystem::path> locate(const named_program& named) {
  if (named.word.find('/') == std::string::npos) {
    const auto beside = cluster::own_program().parent_path() / named.word;
    if (cluster::find_program(beside.string())) return beside;
  }
  if (auto found = cluster::find_program(named.word)) return *found;
  return fail(errc::bad_config,
              named.where + "there is no program \"" + named.word + "\"" +
                  (named.word.find('/') == std::string::npos ? " beside troupe or in PATH"
                                                             : " that may be executed"));
}

}  // namespace

error become_program(const launch_request& request) {
  const auto named = request.program.empty()
                         ? program_of(request.file)
                         : result<named_program>(named_program{request.program, "--program: "});
  if (!named) return named.error();
  const auto program = locate(*named);
  if (!program) return program.error();
  std::vector<std::string> words{program->string()};
  words.insert(words.end(), request.before.begin(), request.before.end());
  words.insert(words.end(), request.flags.begin(), request.flags.end());
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execv(program->c_str(), pointers.data());
  return {errc::io_failed, program->string() + " cannot be started: " + std::strerror(errno)};
}

}  // namespace troupe::apps
