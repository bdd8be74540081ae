// What the NCCL of tests says of a program that uses it as NCCL forbids.

#include <stdlib.h>

#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "engine/collective/nccl/api.hpp"
#include "tests/fake_nccl/device.hpp"

namespace {

namespace nccl = troupe::engine::nccl;
namespace fake = troupe::tests::fake_nccl;
using namespace std::chrono_literals;
using nccl::status;

constexpr auto settles_within = 20s;

const fake::controls& nccl_of_tests() {
  static const fake::controls all(TROUPE_FAKE_NCCL);
  return all;
}

/// The one rank of a communicator, whose functions are called without a `communicator` in between.
class lone_rank {
 public:
  lone_rank() {
    nccl_of_tests().enter_device(0);
    nccl::unique_id id{};
    REQUIRE(call->get_unique_id(&id) == status::success);
    nccl::configuration how;
    REQUIRE(call->init_rank(&handle, 1, id, 0, &how) == status::in_progress);
  }
  lone_rank(const lone_rank&) = delete;
  lone_rank& operator=(const lone_rank&) = delete;
  ~lone_rank() {
    nccl_of_tests().drop_stream(own);
    if (handle != nullptr) call->abort(handle);
  }

  /// Of one number, in place.
  status sum_on(void* stream) {
    return call->all_reduce(&number_, &number_, 1, nccl::data_type::float32, nccl::reduction::sum,
                            handle, stream);
  }
  /// What its communicator says when nothing is in progress any more.
  status settled() {
    const auto end = std::chrono::steady_clock::now() + settles_within;
    auto state = status::in_progress;
    while (state == status::in_progress && std::chrono::steady_clock::now() < end)
      REQUIRE(call->async_error(handle, &state) == status::success);
    return state;
  }
  [[nodiscard]] std::string last_error() const { return call->last_error(handle); }

  const std::shared_ptr<const nccl::api> call = nccl::load({.named = TROUPE_FAKE_NCCL}).value();
  void* const own = nccl_of_tests().make_stream(0);
  nccl::communicator_handle* handle = nullptr;

 private:
  float number_ = 1;
};

TEST_CASE("the NCCL of tests refuses what is called before the last call has completed") {
  const std::string early =
      "Attempt to use communicator before the previous operation returned ncclSuccess";
  lone_rank rank;
  CHECK(rank.sum_on(rank.own) == status::invalid_argument);  // it still joins
  CHECK(rank.last_error() == early);
  REQUIRE(rank.settled() == status::success);
  CHECK(rank.sum_on(rank.own) == status::in_progress);
  CHECK(rank.sum_on(rank.own) == status::invalid_argument);
  CHECK(rank.settled() == status::success);
  CHECK(nccl_of_tests().wrong_uses() == std::string());
}

TEST_CASE("the NCCL of tests refuses a stream of another device") {
  lone_rank rank;
  REQUIRE(rank.settled() == status::success);
  void* const elsewhere = nccl_of_tests().make_stream(1);
  CHECK(rank.sum_on(elsewhere) == status::invalid_usage);
  CHECK(rank.last_error() == "the stream is of another device");
  nccl_of_tests().drop_stream(elsewhere);
}

TEST_CASE("the NCCL of tests refuses communicators whose calls would block") {
  lone_rank rank;
  nccl::unique_id id{};
  REQUIRE(rank.call->get_unique_id(&id) == status::success);
  nccl::configuration blocking;
  blocking.blocking = 1;
  nccl::communicator_handle* other = nullptr;
  CHECK(rank.call->init_rank(&other, 1, id, 0, &blocking) == status::invalid_argument);
  CHECK(other == nullptr);
}

TEST_CASE("the NCCL of tests notes the use of a communicator that is over") {
  lone_rank rank;
  REQUIRE(rank.settled() == status::success);
  auto* const over = std::exchange(rank.handle, nullptr);
  REQUIRE(rank.call->destroy(over) == status::success);
  auto state = status::success;
  CHECK(rank.call->async_error(over, &state) == status::invalid_argument);
  CHECK(rank.call->abort(over) == status::invalid_argument);
  CHECK(nccl_of_tests().wrong_uses() ==
        std::string("ncclCommGetAsyncError with a communicator that is over\n"
                    "ncclCommAbort with a communicator that is over\n"));
}

TEST_CASE("the NCCL of tests notes a communicator that two threads call at once") {
  lone_rank rank;
  REQUIRE(rank.settled() == status::success);
  const int next = nccl_of_tests().calls_of("ncclCommGetAsyncError") + 1;
  ::setenv("FAKE_NCCL_SCRIPT", ("ncclCommGetAsyncError:" + std::to_string(next) + ":hang").c_str(),
           1);
  std::thread within([&rank] {
    auto state = status::success;
    static_cast<void>(rank.call->async_error(rank.handle, &state));
  });
  while (nccl_of_tests().calls_of("ncclCommGetAsyncError") < next) std::this_thread::yield();
  CHECK(rank.call->finalize(rank.handle) == status::in_progress);
  nccl_of_tests().release();
  within.join();
  CHECK(nccl_of_tests().wrong_uses() == std::string("ncclCommFinalize beside another call\n"));
}

TEST_CASE("the NCCL of tests notes a group that ends and did not begin") {
  const lone_rank rank;
  CHECK(rank.call->group_end() == status::invalid_usage);
  CHECK(nccl_of_tests().wrong_uses() == std::string("ncclGroupEnd without ncclGroupStart\n"));
}

}  // namespace
