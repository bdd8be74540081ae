// Disturbs runs of the trainers from outside and looks at how each of their processes ends.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <string>
#include <vector>

#include "tests/chaos/calls.hpp"
#include "tests/chaos/moments.hpp"
#include "tests/chaos/random.hpp"
#include "tests/chaos/soak.hpp"

namespace {

using namespace troupe::chaos;
using steady = std::chrono::steady_clock;

struct wishes {
  std::uint64_t seed = 0;
  std::size_t runs = 200;
  double most_seconds = 0;  // 0: no matter how long
  double bound = 120;
  bool in_place = false;
  bool verbose = false;
  std::string subject;
  failing_call call;
  std::string place;
  double hours = 1;
  double length = 60;
};

std::uint64_t some_seed() {
  if (const char* const one = std::getenv("TROUPE_SEED")) return std::stoull(one);
  return std::random_device{}();
}

/// Whether so many runs, or so many seconds, are through.
class budget {
 public:
  explicit budget(const wishes& wish) : wish_(wish) {}
  [[nodiscard]] bool is_left() const {
    const seconds spent = steady::now() - begin_;
    return done_ < wish_.runs && (wish_.most_seconds == 0 || spent.count() < wish_.most_seconds);
  }
  std::size_t next() { return done_++; }

 private:
  const wishes& wish_;
  const steady::time_point begin_ = steady::now();
  std::size_t done_ = 0;
};

std::vector<std::string> names_of(const wishes& wish) {
  if (!wish.subject.empty()) return {subject_of(wish.subject).name};
  std::vector<std::string> names;
  for (const auto& each : subjects()) names.push_back(each.name);
  names.push_back(recovering_subject().name);
  return names;
}

void tell(const wishes& wish, bool is_bad, const std::string& line, const std::string& log) {
  if (!wish.verbose && !is_bad) return;
  std::printf("%s%s\n", is_bad ? "bad: " : "", line.c_str());
  if (is_bad) std::printf("%s", log.c_str());
  std::fflush(stdout);
}

/// Each call once, in a random order; then again with another number.
std::size_t run_calls(const wishes& wish) {
  std::vector<tried_call> all;
  if (!wish.call.call.empty()) {
    auto one = wish.call;
    one.subject = subject_of(wish.subject).name;
    one.place = wish.place.empty() ? 0 : std::stoull(wish.place, nullptr, 16);
    all.push_back(try_call(one, seconds(wish.bound)));
    std::printf("%s", all.back().log.c_str());
    return report(all);
  }
  std::printf("seed %llu\n", static_cast<unsigned long long>(wish.seed));
  std::vector<failing_call> calls;
  for (const auto& name : names_of(wish)) {
    auto more = count_calls(subject_of(name), seconds(wish.bound));
    std::printf("%s: %zu places\n", name.c_str(), more.size());
    calls.insert(calls.end(), more.begin(), more.end());
  }
  std::fflush(stdout);
  std::mt19937_64 order(wish.seed);
  std::ranges::shuffle(calls, order);
  choices random(wish.seed);
  for (budget left(wish); left.is_left();) {
    const auto index = left.next();
    auto one = calls[index % calls.size()];
    const auto most = one.number;
    one.number = index < calls.size() && one.call != "posix_memalign"
                     ? 1
                     : 1 + static_cast<std::uint32_t>(random.below(most));
    all.push_back(try_call(one, seconds(wish.bound)));
    const auto& last = all.back();
    tell(wish, !last.complaints.empty(),
         one.to_repeat() + ": code " + std::to_string(last.code) + ", " + last.last_line, last.log);
  }
  return report(all);
}

std::size_t run_moments(const wishes& wish) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(wish.seed));
  std::fflush(stdout);
  std::vector<tried_moment> all;
  pace usual{seconds(wish.bound)};
  for (budget left(wish); left.is_left();) {
    const auto seed = wish.seed + left.next();
    all.push_back(try_moment(seed, wish.subject, usual, seconds(wish.bound), wish.in_place));
    const auto& last = all.back();
    tell(wish, !last.complaints.empty(),
         std::to_string(seed) + ": " + last.subject + ", " + last.fault + ", while " +
             name_of(last.where) + ": " + last.end,
         last.log);
  }
  return report(all);
}

}  // namespace

int main(int argc, char** argv) try {
  wishes wish;
  wish.seed = some_seed();
  CLI::App app("Disturbs runs of the trainers from outside and looks at how they end", "chaos");
  app.require_subcommand(1);
  const auto add_common = [&](CLI::App* to) {
    to->add_option("--seed", wish.seed, "Of what is chosen at random; also TROUPE_SEED");
    to->add_option("--runs", wish.runs, "Disturbed runs")->capture_default_str();
    to->add_option("--seconds", wish.most_seconds, "Start no run after so long; 0: all runs");
    to->add_option("--bound", wish.bound, "Seconds after which a run has hung")
        ->capture_default_str();
    to->add_option("--subject", wish.subject, "One of the programs and settings, not any");
    to->add_flag("--verbose", wish.verbose, "A line for each run");
  };
  auto* const calls = app.add_subcommand("calls", "Lets each call that may fail do so once");
  add_common(calls);
  calls->add_option("--call", wish.call.call, "Only this call")
      ->needs(calls->get_option("--subject"));
  calls->add_option("--process", wish.call.process, "Who makes it");
  calls->add_option("--place", wish.place, "From where, as printed");
  calls->add_option("--number", wish.call.number, "The n-th from there");
  calls->add_option("--errno", wish.call.reason, "Why it fails");
  auto* const moments = app.add_subcommand("moments", "Sends signals at random moments");
  add_common(moments);
  moments->add_flag("--in-place", wish.in_place, "Sockets and segments where others have theirs");
  auto* const watched = app.add_subcommand("watch", "Looks for growth in one long run");
  watched->add_option("--subject", wish.subject)->required();
  watched->add_option("--seconds", wish.length)->required();
  auto* const soaked = app.add_subcommand("soak", "Watches and disturbs for hours");
  soaked->add_option("hours", wish.hours)->required()->check(CLI::PositiveNumber);
  soaked->add_option("--seed", wish.seed, "Of what is chosen at random; also TROUPE_SEED");
  CLI11_PARSE(app, argc, argv);
  std::size_t bad = 0;
  if (*calls) bad = run_calls(wish);
  if (*moments) bad = run_moments(wish);
  if (*watched) bad = watch(subject_of(wish.subject), wish.length);
  if (*soaked) bad = soak("/proc/self/exe", wish.hours, wish.seed);
  return bad == 0 ? 0 : 1;
} catch (const std::exception& problem) {
  std::fprintf(stderr, "chaos: %s\n", problem.what());
  return 2;
}
