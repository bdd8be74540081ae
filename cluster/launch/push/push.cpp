#include "cluster/launch/push/push.hpp"

#include <fcntl.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <sodium.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <future>
#include <optional>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "cluster/launch/find_program.hpp"
#include "cluster/launch/process_group.hpp"
#include "messages/base/log.hpp"
#include "messages/descriptor.hpp"

namespace troupe::cluster {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr auto usual_answer = actors::usual_deadlines.tell_of_start;

result<pushed_file> describe_file(const fs::path& path, const fs::path& readable) {
  const auto refuse = [&] {
    return fail(errc::io_failed, path.string() + " cannot be read: " + std::strerror(errno));
  };
  const descriptor file(::open(readable.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return refuse();
  crypto_hash_sha256_state state;
  crypto_hash_sha256_init(&state);
  std::vector<unsigned char> piece(std::size_t{1} << 20);
  pushed_file out{.path = path, .name = path.filename().string(), .digest = {}};
  for (;;) {
    const auto count = ::read(file.get(), piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return refuse();
    if (count == 0) break;
    crypto_hash_sha256_update(&state, piece.data(), static_cast<unsigned long long>(count));
    out.bytes += static_cast<std::uint64_t>(count);
  }
  std::array<unsigned char, crypto_hash_sha256_BYTES> digest{};
  crypto_hash_sha256_final(&state, digest.data());
  std::array<char, 2 * crypto_hash_sha256_BYTES + 1> digits{};
  out.digest = sodium_bin2hex(digits.data(), digits.size(), digest.data(), digest.size());
  return out;
}

std::vector<fs::path> loaded_libraries() {
  std::vector<fs::path> found;
  ::dl_iterate_phdr(
      [](dl_phdr_info* about, std::size_t, void* into) {
        if (about->dlpi_name[0] == '/')
          static_cast<std::vector<fs::path>*>(into)->push_back(
              fs::path(about->dlpi_name).lexically_normal());
        return 0;
      },
      &found);
  return found;
}

bool is_within(const fs::path& path, const fs::path& folder) {
  const auto way = path.lexically_relative(folder);
  return !way.empty() && *way.begin() != "..";
}

/// Whether the host's own packages are to have it: the C library's parts, and whatever else is
/// there.
bool is_of_system(const fs::path& library) {
  std::error_code error;
  const auto real = fs::weakly_canonical(library, error);
  return std::ranges::any_of(std::array{"/lib", "/lib64", "/usr/lib", "/usr/lib64"},
                             [&](const char* folder) { return is_within(real, folder); });
}

/// How a program that ssh ran has ended, and its lines.
struct ended_run {
  child_exit how;
  std::vector<std::string> out;
  std::deque<std::string> errors;
};

/// Runs a line in the shell of a host. `input`: a descriptor, or -1. `what`: that it is to do
/// there, for whoever has to wait; empty: they have been told.
result<ended_run> run_there(const agent_place& place, const std::vector<std::string>& options,
                            const std::string& line, int input, std::chrono::milliseconds limit,
                            const std::string& what = "") {
  const auto ssh = find_program("ssh");
  if (!ssh) return fail(errc::io_failed, "there is no ssh in PATH; install it (openssh-client)");
  std::vector<std::string> own{"-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"};
  own.insert(own.end(), options.begin(), options.end());
  ended_run run;  // written on the group's thread, which has ended when it is read
  {
    auto group = process_group::create(
        {.on_exit = [&run](const child_exit& how) { run.how = how; },
         .on_line =
             [&run](std::string_view, output_stream stream, std::string_view text) {
               if (stream == output_stream::out)
                 run.out.emplace_back(text);
               else
                 run.errors.emplace_back(text);
             }});
    if (!group) return tl::unexpected(group.error());
    auto started = group->start({.name = "ssh",
                                 .arguments = ssh_words_of_line(place.host, own, line),
                                 .environment = {},
                                 .program = *ssh,
                                 .standard_input = input});
    if (!started) return tl::unexpected(started.error());
    if (!what.empty() && !group->wait(usual_answer)) log::info(place.waiting(usual_answer, what));
    if (!group->wait(limit))
      return fail(errc::timed_out, "it has not answered within " + std::to_string(limit / 1s) +
                                       " s; see what `" + place.trial() + "` does");
  }
  return run;
}

result<void> send_file(const agent_place& place, const std::vector<std::string>& options,
                       const pushed_file& file, const upload& part, const std::string& folder) {
  const bool is_own = file.path == own_program();
  const descriptor input(
      ::open(is_own ? "/proc/self/exe" : file.path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!input || ::lseek(input.get(), static_cast<off_t>(part.offset), SEEK_SET) < 0)
    return fail(errc::io_failed, file.path.string() + " cannot be read: " + std::strerror(errno));
  log::info(place.text() + ": " + file.name + " is copied there (" +
            std::to_string((file.bytes - part.offset) >> 20) + " MiB)");
  const auto run = run_there(place, options, upload_line(file, part.offset, folder), input.get(),
                             actors::usual_deadlines.upload);
  if (!run) return tl::unexpected(run.error());
  if (run->how.ok()) return {};
  constexpr int ssh_failed = 255;
  if (run->how.code == ssh_failed)
    return fail(errc::peer_lost, "ssh ended while " + file.name + " was copied there" +
                                     (run->errors.empty() ? "" : " (" + run->errors.back() + ")") +
                                     "; what has arrived is kept, so launch again");
  return fail(errc::io_failed,
              explain_upload(file, folder, {run->errors.begin(), run->errors.end()}));
}

std::string own_machine() {
  utsname about{};
  ::uname(&about);
  return about.machine;
}

result<pushed_place> push_to(const agent_place& place, const std::vector<std::string>& options,
                             const std::vector<pushed_file>& files) {
  const auto name_place = [&place](const error& why) {
    return why.text.starts_with(place.text()) ? why : error_about(place.text(), why);
  };
  const auto asked = run_there(place, options, question_line(files), -1,
                               actors::usual_deadlines.list_files, "tell which files it lacks");
  if (!asked) return tl::unexpected(name_place(asked.error()));
  if (!asked->how.ok())
    return tl::unexpected(
        explain_start(place, asked->how, asked->errors, {asked->out.begin(), asked->out.end()}));
  const auto answer = read_answer(asked->out);
  if (!answer) return tl::unexpected(name_place(answer.error()));
  const auto uploads =
      uploads_of(*answer, files, own_machine(), std::string("glibc ") + ::gnu_get_libc_version());
  if (!uploads) return tl::unexpected(name_place(uploads.error()));
  for (const auto& part : *uploads) {
    auto sent = send_file(place, options, files[part.file], part, answer->folder);
    if (!sent) return tl::unexpected(name_place(sent.error()));
  }
  return place_of(*answer, files);
}

}  // namespace

result<std::vector<pushed_file>> files_to_push(push_extent which) {
  const auto program = own_program();
  std::vector<pushed_file> out;
  auto described = describe_file(program, "/proc/self/exe");
  if (!described) return tl::unexpected(described.error());
  out.push_back(std::move(*described));
  const auto here = program.parent_path();
  for (const auto& library : loaded_libraries()) {
    const bool is_beside =
        library.parent_path() == here || library.parent_path() == here.parent_path() / "lib";
    if (is_of_system(library) || (which != push_extent::all && !is_beside)) continue;
    described = describe_file(library, library);
    if (!described) return tl::unexpected(described.error());
    out.push_back(std::move(*described));
  }
  return out;
}

result<std::map<std::string, pushed_place>> push_files(
    const std::vector<pushed_file>& files, const std::vector<agent_place>& places,
    const std::vector<std::string>& ssh_options) {
  std::map<std::string, std::future<result<pushed_place>>> under_way;
  for (const auto& place : places)
    if (!under_way.contains(place.host))
      under_way[place.host] = std::async(std::launch::async, [&place, &ssh_options, &files] {
        return push_to(place, ssh_options, files);
      });
  std::map<std::string, pushed_place> out;
  std::optional<error> failure;
  for (auto& [host, pushed] : under_way) {
    auto done = pushed.get();
    if (done)
      out[host] = std::move(*done);
    else if (!failure)
      failure = done.error();
  }
  if (failure) return tl::unexpected(*failure);
  return out;
}

}  // namespace troupe::cluster
