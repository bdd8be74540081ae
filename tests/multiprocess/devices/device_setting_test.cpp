// The device of a run: what is refused before anything starts, and what is never loaded.

#include <stdlib.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "tests/multiprocess/program.hpp"
#include "tests/scratch_folder.hpp"

namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;
using troupe::tests::program_outcome;
using troupe::tests::run_other;
using troupe::tests::scratch_folder;

constexpr int refused = 2;

/// A machine with NVIDIA's driver of tests and these cards.
class machine_with_cards {
 public:
  explicit machine_with_cards(const std::string& cards) {
    ::setenv("LD_LIBRARY_PATH", fs::path(TROUPE_FAKE_CUDA).parent_path().c_str(), 1);
    ::setenv("FAKE_CUDA_CARDS", cards.c_str(), 1);
    ::setenv("FAKE_CUDA_LOADED", mark().c_str(), 1);
  }
  [[nodiscard]] bool loaded() const { return fs::exists(mark()); }

 private:
  [[nodiscard]] fs::path mark() const { return folder_ / "loaded"; }

  scratch_folder folder_;
};

/// `first`: a command instead of training.
program_outcome train_on(const std::string& device, const std::vector<std::string>& more = {},
                         const std::string& first = "") {
  std::vector<std::string> words{"--device",        device,
                                 "--model",         "resnet18",
                                 "--data",          "synthetic:3x32x32:10:8",
                                 "--image-size",    "32",
                                 "--batch-size",    "4",
                                 "--micro-batches", "2",
                                 "--steps",         "1",
                                 "--no-eval",       "--no-progress"};
  words.insert(words.end(), more.begin(), more.end());
  if (!first.empty()) words.insert(words.begin(), first);
  return run_other(TROUPE_RESNET, words);
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// A run on the device does not begin: one line says which it is, why, and what to do. Gives its
/// outcome.
program_outcome check_refused(const std::string& device, const std::string& why,
                              const std::string& remedy) {
  const auto outcome = train_on(device);
  CHECK(outcome.code == refused);
  CHECK(count_of(outcome.err, "\n") == 1);
  CHECK_THAT(outcome.err, ContainsSubstring("--device: \"" + device + "\": " + why) &&
                              ContainsSubstring("; " + remedy + "\n"));
  return outcome;
}

const std::string automatic_on_cpu =
    "device = \"auto\": stages compute on the CPU, for no GPU can be used: ";

TEST_CASE("a run on the CPU loads no library of CUDA's", "[untimed]") {
  const machine_with_cards here("NVIDIA H200,9,0,150323855360");
  const auto outcome = train_on("cpu");
  CHECK(outcome.code == 0);
  CHECK_FALSE(here.loaded());
}

TEST_CASE("an automatic device is the CPU where no GPU can be used, and one line says why",
          "[untimed]") {
  const std::string cards = "NVIDIA H200,9,0,150323855360";
  const machine_with_cards here(cards);
  for (const std::string in : {"processes", "threads"}) {
    const auto outcome = train_on("auto", {"--stages-in", in});
    CHECK(outcome.code == 0);
    CHECK(here.loaded());
    CHECK(count_of(outcome.err, automatic_on_cpu) == 1);
    // After ./dev setup --cuda it is there, and finds no driver behind the faked one.
    CHECK_THAT(outcome.err, ContainsSubstring("LibTorch's CUDA library cannot be loaded: ") ||
                                ContainsSubstring("LibTorch's CUDA library does not answer: "));
  }
  const auto shown = train_on("cpu,auto", {}, "--check");  // a device for each stage
  CHECK(shown.code == 0);
  for (const std::string stage : {"0", "1"})
    CHECK(std::regex_search(shown.out,
                            std::regex("\n" + stage + " [^\n]* this machine +cpu +[0-9]+ ")));
  CHECK_THAT(shown.out, ContainsSubstring(automatic_on_cpu));
}

TEST_CASE("every stage process allows TF32 where the config does, and else nowhere", "[untimed]") {
  const machine_with_cards here("");
  const std::string allowed = ": matrix products and convolutions of f32 on GPUs use TF32";
  const auto with = train_on("auto", {"--stages", "2", "--verbose", "--tf32"});
  CHECK(with.code == 0);
  for (const std::string stage : {"stage-0", "stage-1"})
    CHECK(count_of(with.err, stage + allowed) == 1);
  CHECK(count_of(with.err, "Warning") == 0);
  const auto in_threads =
      train_on("auto", {"--stages", "2", "--verbose", "--tf32", "--stages-in", "threads"});
  CHECK(count_of(in_threads.err, allowed) == 2);
  const auto without = train_on("auto", {"--stages", "2", "--verbose"});
  CHECK(without.code == 0);
  CHECK(count_of(without.err, allowed) == 0);
  CHECK_THAT(train_on("auto", {"--tf32"}, "--check").out, ContainsSubstring("may use TF32"));
}

TEST_CASE("an automatic device is the CPU on a machine without a GPU", "[untimed]") {
  const machine_with_cards here("");
  const auto outcome = train_on("auto");
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring(automatic_on_cpu + "the NVIDIA driver finds no GPU"));
}

TEST_CASE("a GPU that is there is refused where LibTorch's CUDA libraries are not", "[untimed]") {
  const machine_with_cards here("NVIDIA H200,9,0,150323855360");
  const auto outcome = train_on("cuda:0");
  CHECK(outcome.code == refused);
  CHECK(here.loaded());
  if (outcome.err.find("LibTorch's CUDA library does not answer: ") != std::string::npos)
    SKIP("LibTorch's CUDA libraries are installed here");
  CHECK_THAT(outcome.err, ContainsSubstring(
                              "--device: \"cuda:0\": LibTorch's CUDA library cannot be loaded: ") &&
                              ContainsSubstring("; pip install nvidia-"));
}

TEST_CASE("a GPU that is not there is refused with those that are", "[untimed]") {
  const machine_with_cards here("NVIDIA H200,9,0,150323855360;NVIDIA H200,9,0,150323855360");
  check_refused("cuda:2", "there is no such GPU on this machine, which has cuda:0 to cuda:1",
                "see `troupe devices`");
}

TEST_CASE("a machine without a driver that starts refuses GPUs with the reason", "[untimed]") {
  const machine_with_cards here("");
  ::setenv("FAKE_CUDA_INIT", "100", 1);
  check_refused("cuda:0", "the NVIDIA driver does not start: no CUDA-capable device is detected",
                "see whether nvidia-smi works on this machine");
  ::unsetenv("FAKE_CUDA_INIT");
}

TEST_CASE("a machine whose driver is not whole refuses GPUs with the reason", "[untimed]") {
  const scratch_folder folder;
  std::ofstream(folder / "libcuda.so.1").close();
  ::setenv("LD_LIBRARY_PATH", folder.path().c_str(), 1);
  check_refused("cuda:0", "there is no NVIDIA driver (",
                "install NVIDIA's driver, or use device = \"cpu\"");
}

TEST_CASE("a machine whose driver is too old refuses GPUs with both versions", "[untimed]") {
  const machine_with_cards here("NVIDIA H200,9,0,150323855360");
  ::setenv("FAKE_CUDA_VERSION", "11080", 1);
  const auto outcome = check_refused("cuda:0", "the NVIDIA driver", "update the driver");
  CHECK_THAT(outcome.err,
             ContainsSubstring(" is too old: it runs CUDA 11.8, and LibTorch was built with "));
  ::unsetenv("FAKE_CUDA_VERSION");
}

TEST_CASE("edges by NCCL are refused on the CPU, in one process, and for one stage, in one line") {
  const auto refuses = [](const std::vector<std::string>& more, const std::string& why) {
    std::vector<std::string> words{"--edges", "nccl"};
    words.insert(words.end(), more.begin(), more.end());
    const auto outcome = train_on("cpu", words);
    CHECK(outcome.code == refused);
    CHECK(count_of(outcome.err, "\n") == 1);
    CHECK_THAT(outcome.err, ContainsSubstring("--edges: " + why));
  };
  refuses({},
          "NCCL sends from GPU to GPU, but stages compute on the CPU; leave \"nccl\" out, or name "
          "a GPU for each stage (--device cuda:0,cuda:1)");
  refuses({"--stages-in", "threads"},
          "\"nccl\" is for stages in processes of their own, and inside one process tensors are "
          "handed over as they are; leave one of the two out");
  refuses({"--stages", "1"},
          "\"nccl\" is for what stages send each other, but there is one stage; leave it out");
}

/// What check says of two stages on two nodes, of which alpha computes on `device`.
program_outcome check_in(const scratch_folder& folder, const std::string& device,
                         const std::string& more = "", const std::string& replicas = "1") {
  const auto node = [](const std::string& name, const std::string& address) {
    return "[[node]]\nname = \"" + name + "\"\nhost = \"" + name + ".invalid\"\naddress = \"" +
           address + "\"\ncores = 1\n";
  };
  std::ofstream(folder / "run.toml")
      << "[cluster]\nlaunch = \"ssh\"\nprogram = \"" << TROUPE_RESNET << "\"\n"
      << node("alpha", "10.9.0.1") << "device = \"" << device << "\"\n"
      << more << node("beta", "10.9.0.2")
      << "[pipeline]\nstages = 2\nmicro_batches = 4\nthreads_per_stage = 1\n"
         "[model]\nname = \"resnet18\"\n"
         "[data]\nsource = \"synthetic:3x32x32:10:24\"\n"
         "[train]\nbatch_size = 8\nsteps = 2\neval = false\n";
  return run_other(TROUPE_RESNET,
                   {"--check", "--config", folder / "run.toml", "--replicas", replicas});
}

/// The number in the first group of `line`, which a line of the table has to match.
double mebi_of(const std::string& table, const std::string& line) {
  std::smatch found;
  INFO(table);
  REQUIRE(std::regex_search(table, found, std::regex(line)));
  return std::stod(found[1]);
}

TEST_CASE("check shows what stages have on their GPUs, and refuses one that has too little",
          "[untimed]") {
  const scratch_folder folder;
  const auto on_cpu = check_in(folder, "cpu");
  REQUIRE(on_cpu.code == 0);
  CHECK_THAT(on_cpu.out, !ContainsSubstring("device memory"));
  const auto on_gpu = check_in(folder, "cuda:0");
  REQUIRE(on_gpu.code == 0);
  CHECK_THAT(on_gpu.out, ContainsSubstring("memory   device memory\n") &&
                             ContainsSubstring("device memory: what of that a stage has on its"));
  const std::string of_cpu = "\n0 +conv1[^\n]* cpu +1 +([0-9]+) MiB\n";
  const std::string beside = "\n0 +conv1[^\n]* cuda:0 +1 +([0-9]+) MiB +[0-9]+ MiB\n";
  const std::string there = "\n0 +conv1[^\n]* cuda:0 +1 +[0-9]+ MiB +([0-9]+) MiB\n";
  const double all = mebi_of(on_cpu.out, of_cpu), kept = mebi_of(on_gpu.out, beside),
               moved = mebi_of(on_gpu.out, there);
  CHECK(kept < all);
  CHECK(moved > 5);
  CHECK(std::regex_search(on_gpu.out, std::regex("\n1 +layer[^\n]* cpu +1 +[0-9]+ MiB +-\n")));
  const auto replicated = check_in(folder, "cuda:0", "", "2");
  CHECK(replicated.code == 0);
  for (const std::string replica : {"0", "1"}) {
    const auto stage = [&](const std::string& line) {
      return std::regex_search(replicated.out, std::regex("\n" + line));
    };
    CHECK(stage("0 of replica " + replica + " +conv1[^\n]* alpha +10.9.0.1 +cuda:0 +1 "));
    CHECK(stage("1 of replica " + replica + " +layer[^\n]* beta +10.9.0.2 +cpu +1 "));
  }
  CHECK_THAT(replicated.out,
             ContainsSubstring("\n2 replicas, each with these stages; a batch has 2 logical "
                               "replicas, whose gradients are summed in a fixed tree\n"));
  const auto room = check_in(folder, "cuda:0", "device_memory_mib = 100\nstages = [0]\n");
  CHECK(room.code == 0);
  CHECK_THAT(room.out, ContainsSubstring("node alpha: its stages take " +
                                         std::to_string(static_cast<int>(moved)) +
                                         " MiB of a GPU's 100 MiB\n"));
  const auto tight = check_in(folder, "auto", "device_memory_mib = 5\nstages = [0]\n");
  CHECK(tight.code == refused);
  CHECK_THAT(tight.err, ContainsSubstring("node \"alpha\" has 5 MiB of a GPU for each of its "
                                          "stages, of which one is predicted to take "));
  const auto summing = check_in(folder, "auto", "device_memory_mib = 2000\nstages = [0]\n", "2");
  CHECK(summing.code == 0);
  CHECK_THAT(summing.out, ContainsSubstring("\ndevice memory includes an estimate of NCCL's "
                                            "buffers, which is high where no NVLink joins GPUs: "
                                            "768 MiB of stage 0\n"));
  CHECK_THAT(room.out, !ContainsSubstring("NCCL"));
  const auto too_tight = check_in(folder, "auto", "device_memory_mib = 760\nstages = [0]\n", "2");
  CHECK(too_tight.code == refused);
  CHECK_THAT(too_tight.err,
             ContainsSubstring(" (of which 768 MiB are an estimate of NCCL's buffers)"));
  const auto useless = check_in(folder, "cpu", "device_memory_mib = 5\n");
  CHECK(useless.code == refused);
  CHECK_THAT(useless.err, ContainsSubstring("node.device_memory_mib: its stages compute on the "
                                            "CPU; leave it out, or name their GPU (device)"));
}

}  // namespace
