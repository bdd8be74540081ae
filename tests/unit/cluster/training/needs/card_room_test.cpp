// Whether stages fit into the memory of this machine's GPUs.

#include "cluster/training/needs/card_room_core.hpp"

#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

namespace {

using namespace troupe;
using cluster::check_card_room;

constexpr double mib = 1 << 20;

const std::vector<engine::card> cards{{.index = 0, .name = "small", .memory_bytes = 100 << 20},
                                      {.index = 1, .name = "large", .memory_bytes = 300 << 20}};

engine::stage_memory on_gpu(double mebi) {
  return {.on_cpu = 1e12, .on_device = mebi * mib, .beside_device = 1e12};
}

std::string why(const std::vector<std::string>& devices,
                const std::vector<engine::stage_memory>& needs) {
  const auto fits = check_card_room(devices, needs, cards);
  return fits ? "" : fits.error().text;
}

}  // namespace

TEST_CASE("Stages of one GPU share its memory, and those of others and of the CPU do not count") {
  CHECK(why({"cuda:0", "cuda:1"}, {on_gpu(100), on_gpu(300)}).empty());
  CHECK(why({"cpu", "cuda:0"}, {on_gpu(1e6), on_gpu(100)}).empty());
  CHECK(why({"cuda:7", "auto, found out there"}, {on_gpu(1e6), on_gpu(1e6)}).empty());
  CHECK(why({"cuda:0", "cuda:0"}, {on_gpu(60), on_gpu(60)}) ==
        "stage-0, stage-1 are together predicted to take 120 MiB of cuda:0 (small), which has 100 "
        "MiB; take more stages and GPUs, smaller micro-batches, or recompute activations "
        "(pipeline.recompute)");
  CHECK(why({"cuda:0", "cuda:1"}, {on_gpu(60), on_gpu(301)})
            .starts_with("stage-1 is predicted to take 301 MiB of cuda:1 (large), which has 300"));
}

TEST_CASE("All replicas of a GPU's stages count") {
  const std::vector<engine::stage_memory> one{on_gpu(160)};
  CHECK(why({"cuda:1"}, one).empty());
  CHECK(why({"cuda:1", "cuda:1"}, one)
            .starts_with("stage-0 of replica 0, stage-0 of replica 1 are together predicted to "
                         "take 320 MiB of cuda:1"));
}

TEST_CASE("What NCCL is estimated to take of a GPU counts, and is called an estimate") {
  auto summing = on_gpu(60);
  summing.by_nccl = 40 * mib;
  CHECK(why({"cuda:0"}, {summing}).empty());
  CHECK(why({"cuda:1", "cuda:1", "cuda:1", "cuda:1"}, {summing, summing})
            .find("are together predicted to take 400 MiB (of which 160 MiB are an estimate of "
                  "NCCL's buffers) of cuda:1 (large), which has 300 MiB; ") != std::string::npos);
}
