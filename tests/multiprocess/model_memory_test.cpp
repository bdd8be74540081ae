// No process of a run holds more of a model than its slices and one layer: peaks of memory of the
// trainer and of each stage process, against a run of a model of nothing.

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "engine/state/tensor_reader.hpp"
#include "tests/multiprocess/program.hpp"
#include "tests/scratch_folder.hpp"

namespace {

using namespace troupe;
using Catch::Matchers::ContainsSubstring;
using tests::scratch_folder;
using words = std::vector<std::string>;

constexpr double mib = 1 << 20;

words operator+(words one, const words& other) {
  one.insert(one.end(), other.begin(), other.end());
  return one;
}

/// The most memory that a process ever had, in bytes; 0 once it has gone.
double peak_of(pid_t process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) * 1024;
  return 0;
}

/// "stage-1" of a stage process; empty: of another.
std::string stage_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/cmdline");
  bool is_next = false;
  for (std::string word; std::getline(file, word, '\0');) {
    if (is_next) return word;
    is_next = word == "--node-name";
  }
  return "";
}

struct peaks {
  double trainer = 0;
  std::map<std::string, double> of_stage;  // by its name
  double largest_stage = 0;
  std::size_t stages = 0;
};

/// A decoder over four stages; whatever it does is over before its last line.
struct decoder_run {
  words model;
  std::filesystem::path text;
  std::function<void(pid_t)> on_process = {};  ///< Told of each process of the run once.
  words shape = {"--context", "16", "--heads", "1", "--batch-size", "2", "--micro-batches", "2"};

  [[nodiscard]] words flags() const {
    return words{"--data", "text:" + text.string(), "--stages", "4", "--steps", "1"} + shape +
           model;
  }

  peaks operator()(const words& more) const {
    std::map<pid_t, double> of_stages;
    peaks seen;
    const auto note = [&](pid_t program, std::string_view) {
      const bool is_new = seen.trainer == 0;
      seen.trainer = std::max(seen.trainer, peak_of(program));
      if (is_new && on_process) on_process(program);
      for (const auto child : tests::children_of(program)) {
        auto [place, fresh] = of_stages.try_emplace(child, 0);
        if (fresh && on_process) on_process(child);
        place->second = std::max(place->second, peak_of(child));
        if (const auto name = stage_of(child); !name.empty())
          seen.of_stage[name] = std::max(seen.of_stage[name], place->second);
      }
    };
    const auto outcome = tests::run_other(
        TROUPE_TRANSFORMER, flags() + words{"--sample-bytes", "2", "--verbose"} + more, note);
    INFO(outcome.err);
    REQUIRE(outcome.code == 0);
    for (const auto& [child, peak] : of_stages)
      seen.largest_stage = std::max(seen.largest_stage, peak);
    seen.stages = of_stages.size();
    CHECK(seen.stages == 4);
    return seen;
  }
};

/// The column `memory` of --check, in bytes, by process.
std::map<std::string, double> predicted_by_check(const words& flags) {
  const auto outcome = tests::run_other(TROUPE_TRANSFORMER, words{"--check"} + flags);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  std::map<std::string, double> all;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("memory:")) break;
    const auto end = line.rfind(" MiB");
    if (end == std::string::npos) continue;
    const auto begin = line.rfind(' ', end - 1);
    const auto name = line.substr(0, line.find(' '));
    all[name == "trainer" ? name : "stage-" + name] =
        std::stod(line.substr(begin, end - begin)) * mib;
  }
  return all;
}

std::filesystem::path text_in(const scratch_folder& folder) {
  std::ofstream text(folder / "text");
  for (int i = 0; i < 400; ++i) text << "Whatever is not its own is dropped at once. ";
  return folder / "text";
}

double bytes_in(const std::filesystem::path& file) {
  const auto reader = engine::tensor_reader::open(file).value();
  double bytes = 0;
  for (const auto& entry : reader->tensors()) bytes += static_cast<double>(entry.end - entry.begin);
  return bytes;
}

/// A group of the kernel's whose processes together may have so much memory, one process each.
class memory_groups {
 public:
  explicit memory_groups(std::uint64_t bytes) : bytes_(bytes) {}
  memory_groups(const memory_groups&) = delete;
  memory_groups& operator=(const memory_groups&) = delete;
  ~memory_groups() {
    for (const auto& each : made_) ::rmdir(each.c_str());
  }

  /// Whether this system has them, and lets us make one.
  static bool work() {
    const std::filesystem::path probe = root / ("troupe-probe-" + std::to_string(::getpid()));
    if (::mkdir(probe.c_str(), 0755) != 0) return false;
    const bool limits = std::filesystem::exists(probe / "memory.limit_in_bytes");
    ::rmdir(probe.c_str());
    return limits;
  }

  void confine(pid_t process) {
    const auto group = root / ("troupe-" + std::to_string(process));
    REQUIRE(::mkdir(group.c_str(), 0755) == 0);
    made_.push_back(group);
    std::ofstream(group / "memory.limit_in_bytes") << bytes_;
    std::ofstream(group / "cgroup.procs") << process;
  }

 private:
  static inline const std::filesystem::path root = "/sys/fs/cgroup/memory";

  std::uint64_t bytes_;
  std::vector<std::filesystem::path> made_;
};

}  // namespace

TEST_CASE("A process has its own slices of the model in memory and not the whole") {
  const scratch_folder folder;
  const auto text = text_in(folder);
  const std::string saved = folder / "w";
  const decoder_run empty{{"--layers", "2", "--width", "8"}, text};
  const decoder_run run{{"--layers", "4", "--width", "1024"}, text};
  const auto nothing = empty({"--verify", "--save", folder / "nothing"});
  const auto trained = run({"--save", saved});
  const auto again = run({"--init", saved});
  const double model = bytes_in(saved);
  REQUIRE(model > 190 * mib);
  // A stage has a quarter of the weights, of the sums of their gradients, of those of a micro-batch
  // and of the optimizer's momentum, and drew one layer more, which here is a quarter too; the rest
  // is what the allocator keeps. With the whole model it would have three quarters more.
  const double slices = 1.1 * model / 4;
  for (const auto& seen : {trained, again}) {
    CAPTURE(nothing.trainer / mib, nothing.largest_stage / mib, seen.trainer / mib,
            seen.largest_stage / mib);
    CHECK(seen.trainer < nothing.trainer + 100 * mib);
    CHECK(seen.largest_stage < nothing.largest_stage + 5 * slices + 64 * mib);
  }
}

TEST_CASE("The peak memory of each process is what the check predicts") {
  const scratch_folder folder;
  const auto text = text_in(folder);
  const decoder_run empty{{"--layers", "4", "--width", "8", "--optimizer", "adamw"}, text};
  const auto nothing = empty({});  // what the program itself takes in each process
  // Nearly all weights; and a third of activations of the four micro-batches in flight.
  const decoder_run heavy{{"--layers", "8", "--width", "1024", "--optimizer", "adamw"}, text};
  const decoder_run lively{{"--layers", "8", "--width", "512", "--optimizer", "adamw"},
                           text,
                           {},
                           {"--context", "64", "--heads", "4", "--batch-size", "16",
                            "--micro-batches", "4", "--no-idle-cores"}};
  for (const auto& run : {heavy, lively}) {
    const auto predicted = predicted_by_check(run.flags());
    REQUIRE(predicted.size() == 5);
    const auto seen = run({});
    REQUIRE(seen.of_stage.size() == 4);
    for (const auto& [name, bytes] : predicted) {
      const bool is_trainer = name == "trainer";
      const double own = is_trainer ? nothing.trainer : nothing.of_stage.at(name);
      const double peak = is_trainer ? seen.trainer : seen.of_stage.at(name);
      CAPTURE(name, own / mib, bytes / mib, peak / mib);
      CHECK(peak > 0.85 * (own + bytes));
      CHECK(peak < 1.15 * (own + bytes));
      CHECK((is_trainer || bytes > own / 2));  // else the program alone would be within 15%
    }
  }
}

TEST_CASE("A model is trained, saved, verified and loaded that fits in no process whole") {
  const char* const wish = std::getenv("TROUPE_LONG");
  if (wish == nullptr || std::string(wish) != "1")
    SKIP("9 GiB of memory and minutes; TROUPE_LONG=1 runs it");
  if (!memory_groups::work()) SKIP("no memory groups (cgroup v1) can be made here");
  const scratch_folder folder;
  const auto text = text_in(folder);
  const std::string saved = folder / "w";
  constexpr auto limit = std::uint64_t{3} << 30;
  memory_groups groups(limit);
  const words model{"--layers", "8", "--width", "2048", "--optimizer", "adamw"};
  const decoder_run run{model, text, [&](pid_t process) { groups.confine(process); }};
  const decoder_run empty{{"--layers", "2", "--width", "8"}, text};
  const auto nothing = empty({});
  const auto trained = run({"--save", saved, "--save-state"});
  CHECK(bytes_in(saved) > 1.5e9);
  const auto again = run({"--init", saved});
  CHECK(trained.trainer < nothing.trainer + 100 * mib);
  CHECK(again.trainer < nothing.trainer + 100 * mib);
  static_cast<void>(run({"--init", saved, "--verify"}));
}
