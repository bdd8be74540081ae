// By what replicas are invited to NCCL, and what a process says of it.

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <string>

#include "engine/collective/nccl/maker.hpp"
#include "tests/refusal.hpp"

namespace {

namespace nccl = troupe::engine::nccl;
using Catch::Matchers::ContainsSubstring;
using troupe::errc;
using troupe::engine::socket_reach;

nccl::maker_options over_fake() {
  return {.places = {.named = TROUPE_FAKE_NCCL}};
}

}  // namespace

TEST_CASE("an invitation is the same after its way as text, and nothing else is one") {
  nccl::invitation made{.id = {}, .version = 22809, .ranks = 3};
  for (int i = 0; i < 128; ++i) made.id.bytes[i] = static_cast<char>(2 * i);
  const auto text = nccl::to_text(made);
  CHECK(text.starts_with("22809:3:000204"));
  const auto read = nccl::parse_invitation(text).value();
  CHECK(read.version == 22809);
  CHECK(read.ranks == 3);
  CHECK(std::string(read.id.bytes, 128) == std::string(made.id.bytes, 128));
  for (const auto& wrong :
       {std::string(), std::string("22809"), text.substr(1 + text.find(':')), text + "0",
        text.substr(0, text.size() - 1) + "g", "x" + text, "22809:0:" + text.substr(8)}) {
    INFO(wrong);
    CHECK(error_of(nccl::parse_invitation(wrong)).code == errc::bad_frame);
  }
}

TEST_CASE("a maker says why a device's tensors cannot go by NCCL") {
  const nccl::maker cards(over_fake());
  CHECK(error_of(cards.library_for(c10::Device(c10::kCPU))).text ==
        "NCCL is for GPUs, and the stage computes on the CPU");
  CHECK(cards.library_for(c10::Device(c10::DeviceType::CUDA, 0)) == "NCCL 2.28.9");
  const nccl::maker lacking({.places = {.named = TROUPE_LACKING_NCCL}});
  CHECK_THAT(error_of(lacking.library_for(c10::Device(c10::DeviceType::CUDA, 0))).text,
             ContainsSubstring("has no function ncclAllGather"));
}

TEST_CASE("an invitation for other ranks, and a device that is not there, are refused") {
  const nccl::maker cards(over_fake());
  const auto text = cards.invite(2, socket_reach::loopback, {c10::DeviceType::CUDA, 0}).value();
  const auto join = [&](std::uint32_t rank, std::uint32_t ranks) {
    return error_of(cards.join({.name = "the replicas of stage-0",
                                .invitation = text,
                                .rank = rank,
                                .ranks = ranks,
                                .on = {c10::DeviceType::CUDA, 0}}))
        .text;
  };
  CHECK(join(0, 3) ==
        "the replicas of stage-0: an invitation for 2 ranks, but this is rank 0 of 3");
  CHECK(join(2, 2) ==
        "the replicas of stage-0: an invitation for 2 ranks, but this is rank 2 of 2");
  CHECK_THAT(join(0, 2), ContainsSubstring("cuda:0 cannot be used"));
}
