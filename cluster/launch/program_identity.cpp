#include "cluster/launch/program_identity.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cluster/launch/process_group.hpp"
#include "messages/descriptor.hpp"

namespace troupe::cluster {
namespace {

constexpr std::size_t most_lines = 100;

/// Whether a file has the words of an answer in it, as a program has that is linked with the
/// library. One that loads the library, or a script, has to be asked.
bool contains_identity(const std::filesystem::path& file) {
  const descriptor from(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat about {};
  if (!from || ::fstat(from.get(), &about) != 0 || about.st_size == 0) return false;
  const auto bytes = static_cast<std::size_t>(about.st_size);
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, from.get(), 0);
  if (mapped == MAP_FAILED) return false;
  const bool is_elf = bytes > 4 && std::memcmp(mapped,
                                               "\x7f"
                                               "ELF",
                                               4) == 0;
  const bool found = is_elf && ::memmem(mapped, bytes, identity.data(), identity.size()) != nullptr;
  ::munmap(mapped, bytes);
  return found;
}

struct answer {
  std::vector<std::string> out;
  std::vector<std::string> err;
  bool is_endless = false;  ///< More came than anybody wants to hear.
  bool is_late = false;
  child_exit end;
};

result<answer> ask(const std::filesystem::path& program, std::chrono::milliseconds patience) {
  answer heard;  // written on the group's thread, which has ended when it is read
  {
    process_group* asked = nullptr;
    auto group = process_group::create(
        {.on_exit = [&](const child_exit& how) { heard.end = how; },
         .on_line =
             [&](std::string_view, output_stream stream, std::string_view text) {
               auto& lines = stream == output_stream::out ? heard.out : heard.err;
               if (lines.size() < most_lines)
                 lines.emplace_back(text);
               else if (!std::exchange(heard.is_endless, true))
                 asked->kill();
             }});
    if (!group) return tl::unexpected(group.error());
    asked = &*group;
    if (auto begun = group->start(
            {.name = "it", .arguments = {identity_word}, .environment = {}, .program = program});
        !begun)
      return tl::unexpected(begun.error());
    heard.is_late = !group->wait(patience);
    group->terminate_all(std::chrono::milliseconds(0));
  }
  return heard;
}

std::string words_on(const answer& heard, std::chrono::milliseconds patience) {
  if (heard.is_endless) return "it wrote something else, and went on";
  if (heard.is_late) return "it did not end within " + std::to_string(patience.count()) + " ms";
  const auto& said = heard.err.empty() ? heard.out : heard.err;
  return describe(heard.end) + (said.empty()
                                    ? " and wrote nothing"
                                    : " and wrote \"" + said.front().substr(0, 200) + "\"");
}

}  // namespace

result<void> check_identity(const std::filesystem::path& program,
                            std::chrono::milliseconds patience) {
  if (contains_identity(program)) return {};
  const auto heard = ask(program, patience);
  if (!heard) return fail(errc::bad_config, heard.error().text);
  const bool is_in_time = !heard->is_late && !heard->is_endless;
  if (is_in_time && heard->end.ok() && heard->out == std::vector{std::string(identity)}) return {};
  return fail(errc::bad_config, program.string() + " is no program of Troupe, whose main calls " +
                                    "troupe::main: asked for that (" + identity_word + "), " +
                                    words_on(*heard, patience));
}

}  // namespace troupe::cluster
