// Whatever a tensor's owner does while a snapshot of it is read, what is read is what it was, and
// nothing is copied that need not be.

#include "engine/slices/snapshot.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <filesystem>
#include <functional>
#include <limits>
#include <stdexcept>
#include <thread>
#include <vector>

#include "engine/slices/summed_file.hpp"
#include "tests/refusal.hpp"
#include "tests/scratch_folder.hpp"

namespace {

using namespace troupe;
using engine::named_tensor;
using engine::snapshot;

constexpr auto never = std::numeric_limits<int>::max();

at::Tensor cloned(const at::Tensor& tensor) {
  return tensor.clone();
}

/// Of all layouts and types that stages have: some of several runs, the last one not whole.
std::vector<at::Tensor> tensors_of_all_kinds() {
  return {at::rand({700'001}),
          at::rand({64, 64, 9, 9}).to(at::MemoryFormat::ChannelsLast),
          at::rand({1000, 900}).t(),
          at::rand({1, 600'000, 1, 2}).to(at::MemoryFormat::ChannelsLast),
          at::rand({3, 300'000}).narrow(1, 7, 299'000),
          at::rand({5}).to(at::kBFloat16),
          at::arange(300'000, at::kLong),
          at::ones({}, at::kDouble),
          at::zeros({0, 4}),
          at::rand({9})._neg_view()};
}

/// What is read if the owner changes the tensor before the run of that number.
at::Tensor read_beside_change(const at::Tensor& tensor, int run_of_change) {
  snapshot shown({"w", tensor}, snapshot::elements::may_change);
  const auto change = [&] {
    shown.make_own(cloned);
    tensor.fill_(3);
  };
  if (run_of_change == 0) change();
  std::vector<at::Tensor> runs;
  std::int64_t next = 0;
  REQUIRE(shown.read([&](const std::string& name, std::uint64_t first, const at::Tensor& run) {
    CHECK(name == "w");
    CHECK(first == static_cast<std::uint64_t>(next));
    next += run.numel();
    runs.push_back(run.resolve_neg().clone());
    if (static_cast<int>(runs.size()) == run_of_change) change();
    return result<void>();
  }));
  return at::cat(runs);
}

}  // namespace

TEST_CASE("What is read is what a tensor was, whenever its owner changes it") {
  for (std::size_t kind = 0; kind < tensors_of_all_kinds().size(); ++kind)
    for (const int run_of_change : {0, 1, 2, never}) {
      CAPTURE(kind, run_of_change);
      const auto tensor = tensors_of_all_kinds()[kind];
      const auto expected = tensor.resolve_neg().contiguous().clone().view({-1});
      CHECK(at::equal(read_beside_change(tensor, run_of_change), expected));
    }
}

TEST_CASE("Two threads at once: one reads many tensors while the other changes them") {
  std::vector<named_tensor> live;
  for (int i = 0; i < 40; ++i) live.push_back({std::to_string(i), at::ones({200'000}) * i});
  const auto shown = engine::snapshots_of(live, snapshot::elements::may_change);
  int copied = 0;
  std::atomic<int> wrong = 0;
  std::thread reader([&] {
    const auto read =
        engine::stream_of(shown).send([&](const auto& name, std::uint64_t, const at::Tensor& run) {
          if (!at::equal(run, at::ones_like(run) * std::stoi(name))) ++wrong;
          return result<void>();
        });
    if (!read) ++wrong;
  });
  for (std::size_t i = live.size(); i-- > 0;) {
    shown[i]->make_own([&](const at::Tensor& tensor) {
      ++copied;
      return tensor.clone();
    });
    live[i].tensor.fill_(-1);
  }
  reader.join();
  CHECK(wrong == 0);
  CHECK(copied > 0);
}

TEST_CASE("Nothing is copied that has been read, or that nobody changes") {
  const auto refuse = [](const at::Tensor&) -> at::Tensor { throw std::logic_error("copied"); };
  const auto tensor = at::rand({600'000});
  snapshot read({"w", tensor}, snapshot::elements::may_change);
  const auto take = [](const auto&...) { return result<void>(); };
  REQUIRE(read.read(take));
  read.make_own(refuse);
  CHECK(error_of(read.read(take), errc::stale).text == "\"w\" has been read");
  snapshot constant({"w", tensor}, snapshot::elements::stay);
  constant.make_own(refuse);
  const auto whole = constant.read_whole().value();
  CHECK(whole.data_ptr() == tensor.data_ptr());
  CHECK(constant.read_whole().error().code == errc::stale);
}

TEST_CASE("Who changes tensors holds none that nobody will read") {
  engine::unread_snapshots unread;
  auto shown = engine::snapshots_of({{"kept", at::ones({3})}, {"dropped", at::ones({3})}},
                                    snapshot::elements::may_change);
  unread.add(shown);
  shown.pop_back();
  std::vector<std::int64_t> copied;
  const auto copy = [&](const at::Tensor& tensor) {
    copied.push_back(tensor.numel());
    return tensor.clone();
  };
  unread.make_own(copy);
  CHECK(copied == std::vector<std::int64_t>{3});
  unread.make_own(copy);
  CHECK(copied.size() == 1);
}

TEST_CASE("A tensor that is read whole is the reader's own") {
  const auto tensor = at::ones({5});
  snapshot shown({"w", tensor}, snapshot::elements::may_change);
  const auto whole = shown.read_whole().value();
  tensor.fill_(2);
  CHECK(at::equal(whole, at::ones({5})));
}

TEST_CASE("Where there is no memory for a copy the file is not written, and the owner goes on") {
  const tests::scratch_folder folder;
  const auto shown = engine::snapshots_of({{"first", at::ones({300'000})}, {"last", at::ones({5})}},
                                          snapshot::elements::may_change);
  shown[1]->make_own([](const at::Tensor&) -> at::Tensor { throw std::bad_alloc(); });
  check_refused(engine::save_summed(folder / "file", engine::stream_of(shown)),
                errc::handler_failed, "\"last\" could not be copied before a step changed it");
  CHECK_FALSE(std::filesystem::exists(folder / "file"));
}

TEST_CASE("A file of snapshots is that of their tensors") {
  const tests::scratch_folder folder;
  std::vector<named_tensor> all;
  for (const auto& each : tensors_of_all_kinds()) all.push_back({std::to_string(all.size()), each});
  const auto shown = engine::snapshots_of(all, snapshot::elements::may_change);
  const auto made = engine::save_summed(folder / "shown", engine::stream_of(shown)).value();
  CHECK(made == engine::save_summed(folder / "kept", engine::stream_of(all)).value());
}
