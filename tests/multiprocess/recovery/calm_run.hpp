#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <catch2/catch_test_macros.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "messages/descriptor.hpp"
#include "tests/multiprocess/program.hpp"
#include "tests/scratch_folder.hpp"
#include "tests/words.hpp"

namespace troupe::tests {

/// A run that nothing happens to: its weights, and its state and steps where it saves and tells
/// them. Each is made once for all tests, and kept in the build's folder until the program is
/// another one. So a run's words name no file that one test alone has. What another build of the
/// program has left stays while one of these lives that was made with it. Any thread and process.
class calm_run {
 public:
  calm_run(const std::string& program, const words& run) : folder_(place_of(program, run)) {
    make_room(program);
    used_ = open_lock(folder_.parent_path() / used);
    REQUIRE(::flock(used_.get(), LOCK_SH) == 0);
    const auto lock = open_lock(folder_.string() + ".lock");
    REQUIRE(::flock(lock.get(), LOCK_EX) == 0);
    if (!std::filesystem::exists(folder_)) make(program, run);
  }

  [[nodiscard]] std::filesystem::path weights() const { return folder_ / "calm"; }
  [[nodiscard]] std::filesystem::path state() const { return folder_ / "calm.state.safetensors"; }
  [[nodiscard]] std::filesystem::path steps() const { return folder_ / "calm.json"; }

 private:
  static constexpr const char* used = "used";  // in a build's folder: locked by whoever uses it

  static descriptor open_lock(const std::filesystem::path& file) {
    return descriptor(::open(file.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  }

  static std::string version_of(const std::string& file) {
    struct stat of {};
    REQUIRE(::stat(file.c_str(), &of) == 0);
    return std::to_string(of.st_size) + "-" + std::to_string(of.st_mtim.tv_sec) + "-" +
           std::to_string(of.st_mtim.tv_nsec);
  }

  /// What bits depend on beside the program and its words: how many threads a stage has follows
  /// from the cores, and which kernels LibTorch takes from the CPU and the environment.
  static std::string machine() {
    const char* const capability = std::getenv("ATEN_CPU_CAPABILITY");
    auto key = std::to_string(std::thread::hardware_concurrency()) + '\0' +
               version_of(TROUPE_LIBTORCH) + '\0' + (capability == nullptr ? "" : capability);
    std::ifstream processors("/proc/cpuinfo");
    for (std::string line; std::getline(processors, line) && !line.empty();)
      if (line.starts_with("model name") || line.starts_with("flags")) (key += '\0') += line;
    return key;
  }

  /// A folder a build of the program, and in it one a run.
  static std::filesystem::path place_of(const std::string& program, const words& run) {
    const auto build = version_of(program);
    auto key = machine();
    for (const auto& word : run) (key += '\0') += word;
    char name[32];
    std::snprintf(name, sizeof(name), "%016zx", std::hash<std::string>()(key));
    const std::filesystem::path file(program);
    return file.parent_path().parent_path() / "calm_runs" /
           (file.filename().string() + "-" + build) / name;
  }

  /// What an older build of the program has left goes, unless a test that still runs uses it.
  void make_room(const std::string& program) const {
    const auto build = folder_.parent_path();
    if (std::filesystem::exists(build)) return;
    std::filesystem::create_directories(build.parent_path());
    const auto begin = std::filesystem::path(program).filename().string() + "-";
    std::error_code gone;  // another test removes it too
    for (const auto& each : std::filesystem::directory_iterator(build.parent_path())) {
      if (each.path() == build || !each.path().filename().string().starts_with(begin)) continue;
      const auto lock = open_lock(each.path() / used);
      if (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0)
        std::filesystem::remove_all(each.path(), gone);
    }
    std::filesystem::create_directories(build);
  }

  void make(const std::string& program, const words& run) const {
    const scratch_folder made(folder_.parent_path());
    const auto outcome =
        run_other(program, with(run, {"--save", made / "calm", "--json", made / "calm.json"}));
    REQUIRE(outcome.code == 0);
    std::filesystem::rename(made.path(), folder_);
  }

  std::filesystem::path folder_;
  descriptor used_;
};

}  // namespace troupe::tests
