// `troupe devices` with a driver of tests: what is listed, and what is said of what cannot be used.

#include <stdlib.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/multiprocess/program.hpp"
#include "tests/scratch_folder.hpp"

namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;
using troupe::tests::run_other;
using troupe::tests::scratch_folder;

const std::string two_cards = "NVIDIA H200,9,0,150323855360;GTX 1080,6,1,8589934592";

/// What a machine has, for the programs that are started after this.
struct machine {
  std::string cards = two_cards;
  std::string cuda = "13000";
  std::vector<fs::path> folders = {fs::path(TROUPE_FAKE_CUDA).parent_path(),
                                   fs::path(TROUPE_FAKE_NVML).parent_path()};
  std::string torch_cuda = TROUPE_FAKE_TORCH_CUDA;
  std::string nccl = TROUPE_FAKE_NCCL;
};

/// The output of `troupe devices` there; it ends well, and says nothing else.
std::string devices(const machine& here, const std::vector<std::string>& flags = {}) {
  std::string path;
  for (const auto& folder : here.folders) path += folder.string() + ":";
  ::setenv("LD_LIBRARY_PATH", path.c_str(), 1);
  ::setenv("FAKE_CUDA_CARDS", here.cards.c_str(), 1);
  ::setenv("FAKE_NVML_CARDS", "2", 1);
  ::setenv("FAKE_CUDA_VERSION", here.cuda.c_str(), 1);
  std::vector<std::string> words{"devices", "--nccl", here.nccl, "--torch-cuda", here.torch_cuda};
  words.insert(words.end(), flags.begin(), flags.end());
  const auto outcome = run_other(TROUPE_COMMAND, words);
  CHECK(outcome.code == 0);
  CHECK(outcome.err.empty());
  return outcome.out;
}

TEST_CASE("troupe devices lists GPUs, and why one cannot be used", "[untimed]") {
  const std::string said = devices({});
  CHECK_THAT(said, ContainsSubstring("driver   580.65.06, runs CUDA up to 13.0; LibTorch was built "
                                     "with 13.0\n"));
  CHECK_THAT(said, ContainsSubstring("cuda:0   NVIDIA H200, 140.0 GiB, architecture 9.0: LibTorch "
                                     "can use it\n"));
  CHECK_THAT(said,
             ContainsSubstring("cuda:1   GTX 1080, 8.0 GiB, architecture 6.1: cannot be used: "
                               "this LibTorch has no code for its architecture 6.1, but for "
                               "7.5, 9.0, 12.0, 12.0 and newer; "));
  CHECK_THAT(said, ContainsSubstring(std::string("nccl     2.28.9 in ") + TROUPE_FAKE_NCCL + "\n"));
  CHECK_THAT(said,
             ContainsSubstring("Stages train on the CPU, and on a GPU that LibTorch can use"));
}

TEST_CASE("troupe devices --json tells programs the same", "[untimed]") {
  const auto said = nlohmann::json::parse(devices({}, {"--json"}));
  CHECK(said["cpu"]["cores"].get<int>() >= 1);
  CHECK(said["cpu"]["memory_bytes"].get<double>() > 0);
  CHECK(said["cuda"]["driver"] == "580.65.06");
  CHECK(said["cuda"]["driver_cuda"] == "13.0");
  CHECK(said["cuda"]["problem"] == "");
  const auto& cards = said["cuda"]["gpus"];
  REQUIRE(cards.size() == 2);
  CHECK(cards[0]["device"] == "cuda:0");
  CHECK(cards[0]["name"] == "NVIDIA H200");
  CHECK(cards[0]["memory_bytes"] == 150323855360);
  CHECK(cards[0]["usable"] == true);
  CHECK(cards[1]["usable"] == false);
  CHECK(cards[1]["architecture"] == "6.1");
  CHECK(said["nccl"]["usable"] == true);
  CHECK(said["trains_on"] == nlohmann::json::array({"cpu", "cuda:0"}));
}

TEST_CASE("troupe devices names a driver that is too old, and does not load LibTorch's CUDA",
          "[untimed]") {
  const std::string said = devices({.cuda = "12040", .torch_cuda = "/nowhere/libtorch_cuda.so"});
  CHECK_THAT(said,
             ContainsSubstring("cuda:0   NVIDIA H200, 140.0 GiB, architecture 9.0: cannot be "
                               "used: the NVIDIA driver 580.65.06 is too old: it runs CUDA "
                               "12.4, and LibTorch was built with 13.0; update the driver\n"));
}

TEST_CASE("troupe devices names a driver that is not whole", "[untimed]") {
  const scratch_folder folder;
  std::ofstream(folder / "libcuda.so.1").close();
  const std::string said = devices({.folders = {folder.path()}});
  CHECK_THAT(said, ContainsSubstring("cuda     cannot be used: there is no NVIDIA driver (") &&
                       ContainsSubstring("libcuda.so.1: file too short); install NVIDIA's driver"));
}

TEST_CASE("troupe devices names the library that LibTorch lacks", "[untimed]") {
  const std::string said = devices({.torch_cuda = TROUPE_LACKING_TORCH_CUDA});
  CHECK_THAT(said, ContainsSubstring("cannot be used: LibTorch's CUDA library cannot be loaded: "
                                     "libcudnn_of_tests.so.9: cannot open shared object file"));
}

TEST_CASE("troupe devices names an NCCL that is not there", "[untimed]") {
  CHECK_THAT(devices({.nccl = "/nowhere"}),
             ContainsSubstring("nccl     cannot be used: NCCL: --nccl names /nowhere, which is not "
                               "there; correct --nccl, or leave it out\n"));
}

TEST_CASE("troupe devices says where CUDA_VISIBLE_DEVICES hides every GPU", "[untimed]") {
  CHECK_THAT(devices({.cards = ""}),
             ContainsSubstring("cuda     cannot be used: CUDA_VISIBLE_DEVICES hides all 2 GPUs"));
}

}  // namespace
