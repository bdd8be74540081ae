#include "apps/troupe/launch_command.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "cluster/config/sources/set_flag.hpp"
#include "cluster/config/sources/toml_file.hpp"
#include "cluster/launch/find_program.hpp"
#include "cluster/launch/program_identity.hpp"

namespace troupe::apps {
namespace {

struct named_program {
  std::string word;
  std::string where;  ///< Who named it, for errors.
};

/// As the program itself reads its settings: --set wins over the files, the last file over others.
result<named_program> program_of(const launch_request& request) {
  for (auto text = request.sets.rbegin(); text != request.sets.rend(); ++text) {
    const auto parts = cluster::split_set(*text);
    if (parts && parts->table == "cluster" && parts->key == "program")
      return named_program{cluster::text_of(*parts), "--set cluster.program: "};
  }
  std::optional<named_program> named;
  for (const auto& file : request.files) {
    const auto read =
        cluster::read_text_key(file, "cluster", "program", cluster::variables_of_process());
    if (!read) return tl::unexpected(read.error());
    if (*read) named = named_program{(*read)->text, (*read)->place + ": cluster.program: "};
  }
  if (!named)
    return fail(errc::bad_config, request.files.back().string() +
                                      ": cluster.program is left out; name the program to run "
                                      "(program = \"..\" in [cluster])");
  if (named->word.empty())
    return fail(errc::bad_config, named->where + "is empty; name the program to run");
  return *named;
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
                         ? program_of(request)
                         : result<named_program>(named_program{request.program, "--program: "});
  if (!named) return named.error();
  const auto program = locate(*named);
  if (!program) return program.error();
  if (const auto known = cluster::check_identity(*program); !known)
    return {known.error().code, named->where + known.error().text};
  std::vector<std::string> words{program->string()};
  words.insert(words.end(), request.before.begin(), request.before.end());
  words.insert(words.end(), request.flags.begin(), request.flags.end());
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execv(program->c_str(), pointers.data());
  return {errc::bad_config, named->where + program->string() +
                                " cannot be started: " + std::strerror(errno) +
                                "; name the run's program, as it is built for this machine"};
}

}  // namespace troupe::apps
