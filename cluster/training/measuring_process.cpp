#include "cluster/training/measuring_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "cluster/launch/child_process.hpp"
#include "cluster/launch/pipe_ends.hpp"
#include "cluster/launch/start/write_all.hpp"
#include "cluster/training/partitioning.hpp"
#include "engine/base/free_memory.hpp"
#include "engine/partition/profile_file.hpp"

namespace troupe::cluster {
namespace {

constexpr std::string_view measured = "measured\n", refused = "refused ";
constexpr const char* name = "the process that measures layers";

/// What was written, or why nothing was: "refused CODE\nTEXT".
std::string answer_of(const result<engine::model_profile>& profile) {
  if (!profile)
    return std::string(refused) + std::to_string(static_cast<int>(profile.error().code)) + "\n" +
           profile.error().text;
  return std::string(measured) + engine::to_text({.model = "measured", .sizes = {*profile}});
}

result<engine::model_profile> profile_in(std::string_view answer) {
  if (answer.starts_with(measured)) {
    auto read = engine::parse_profile(answer.substr(measured.size()), name);
    if (!read) return tl::unexpected(read.error());
    return std::move(read->sizes.front());
  }
  int code = 0;
  const auto end = answer.find('\n');
  if (!answer.starts_with(refused) || end == std::string_view::npos ||
      std::from_chars(answer.data() + refused.size(), answer.data() + end, code).ec != std::errc())
    return fail(errc::handler_failed, name + std::string(" gave no answer"));
  return fail(static_cast<errc>(code), std::string(answer.substr(end + 1)));
}

/// Moves all that there is to read; closes it at the end.
void take(descriptor& from, const std::function<void(std::string_view)>& put) {
  std::array<char, 4096> bytes;
  while (from) {
    const auto count = ::read(from.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) from.reset();
    if (count > 0) put({bytes.data(), static_cast<std::size_t>(count)});
  }
}

/// What it answers until it has ended, whoever holds its output then. All else that it writes is
/// for people.
std::string read_until_ended(child_process& from, descriptor answers) {
  auto [out, err] = std::move(from.output());
  std::string answer;
  const auto show = [](std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); };
  for (bool has_ended = false; !has_ended;) {
    std::array<pollfd, 4> at{{{answers.get(), POLLIN, 0},
                              {out.get(), POLLIN, 0},
                              {err.get(), POLLIN, 0},
                              {from.exit_descriptor(), POLLIN, 0}}};
    if (::poll(at.data(), at.size(), -1) < 0 && errno != EINTR) break;
    has_ended = at[3].revents != 0;
    take(answers, [&answer](std::string_view text) { answer += text; });
    take(out, show);
    take(err, show);
  }
  return answer;
}

child_exit wait_for(child_process& child) {
  for (;;) {
    if (auto ended = child.try_reap()) return *ended;
    pollfd at{child.exit_descriptor(), POLLIN, 0};
    ::poll(&at, 1, -1);
  }
}

/// `command`: of this process, with the program's name.
result<engine::model_profile> measure_by_child(const std::vector<std::string>& command,
                                               std::int64_t samples) {
  auto ends = open_pipe();
  if (!ends) return tl::unexpected(ends.error());
  auto& [answers, theirs] = *ends;
  ::fcntl(answers.get(), F_SETFL, O_NONBLOCK);
  child_spec spec{.name = name,
                  .arguments = {std::string(measure_word), std::to_string(samples)},
                  .environment = {{started_by, std::to_string(::getpid())}},
                  .handed_over = theirs.get()};
  spec.arguments.insert(spec.arguments.end(), command.begin() + 1, command.end());
  auto child = child_process::start(spec);
  if (!child) return fail(errc::handler_failed, child.error().text);
  theirs.reset();
  const auto answer = read_until_ended(*child, std::move(answers));
  if (const auto ended = wait_for(*child); !ended.ok())
    return fail(errc::handler_failed, describe(ended));
  return profile_in(answer);
}

/// Whether another process that is given this one's command line reads the same from it.
bool can_be_read_again(const std::vector<std::string>& command,
                       const std::vector<std::filesystem::path>& files) {
  return !command.empty() && std::ranges::all_of(files, [](const std::filesystem::path& file) {
    std::error_code ignored;
    return std::filesystem::is_regular_file(file, ignored);
  });
}

}  // namespace

result<measured_layers> measure_in_process(const layers_to_measure& what, std::int64_t samples) {
  // A main that passes other words on would have its children measure by children, without end.
  if (was_launched() || !can_be_read_again(what.config.command, what.config.config_files))
    return measure_activations(what, samples);
  if (auto fits = check_measurable(what, samples, engine::read_free_memory()); !fits)
    return tl::unexpected(fits.error());
  auto profile = measure_by_child(what.config.command, samples);
  if (!profile) return tl::unexpected(profile.error());
  auto read = first_samples(what.data, samples);
  if (!read) return tl::unexpected(read.error());
  return measured_layers{std::move(*read), std::move(*profile)};
}

int answer_measuring(
    std::string_view samples,
    const std::function<result<engine::model_profile>(std::int64_t samples)>& measure) {
  std::int64_t count = 0;
  const auto* const end = samples.data() + samples.size();
  const auto read = std::from_chars(samples.data(), end, count);
  const auto answer = answer_of(
      read.ec != std::errc() || read.ptr != end || count < 1
          ? fail(errc::bad_config, std::string(measure_word) + " needs a number of samples, and " +
                                       "what a run of this program is started with")
          : measure(count));
  return write_all(handed_over_as, answer) ? 0 : 1;
}

}  // namespace troupe::cluster
