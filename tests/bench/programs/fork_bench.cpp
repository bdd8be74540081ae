// Measures what a fork and a wait cost on a warm pool.
//
//   fork_bench [--threads N] [--json]

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/neg.h>

#include <string>
#include <vector>

#include "actors/futures/combine.hpp"
#include "actors/futures/fork.hpp"
#include "actors/futures/pool.hpp"
#include "tests/bench/programs/figures.hpp"
#include "tests/flags.hpp"

namespace {

using namespace troupe;
using namespace troupe::bench;
using actors::pool;

/// Nanoseconds for each of `count` calls of `body`: the median of some runs.
template <class Body>
double each(int count, Body body) {
  std::vector<double> runs;
  for (int run = 0; run < 9; ++run) {
    const stopwatch watch;
    for (int i = 0; i < count; ++i) body();
    runs.push_back(watch.nanoseconds() / count);
  }
  return quantile(runs, 0.5);
}

void fork_and_wait(pool& on) {
  (void)actors::wait(on.fork([] { return 1; }));
}

void fork_many_then_wait(pool& on) {
  std::vector<actors::future<int>> open;
  open.reserve(100);
  for (int i = 0; i < 100; ++i) open.push_back(on.fork([i] { return i; }));
  for (const auto& each : open) (void)actors::wait(each);
}

int nest(pool& on, int levels) {
  if (levels == 0) return 0;
  return *actors::wait(on.fork([&on, levels] { return nest(on, levels - 1); })) + 1;
}

}  // namespace

int main(int argc, char** argv) {
  troupe::tests::flags line("Measures what a fork and a wait cost");
  unsigned threads = 2;
  bool json = false;
  line.number("--threads", threads, "Threads of the pool", 1, 1024);
  line.flag("--json", json, "One JSON object a line");
  if (const auto end = line.read(argc, argv)) return *end;

  const figures out(json);
  pool on({.threads = threads});
  out.add("fork_wait.inside",
          *actors::wait(on.fork([&] { return each(100'000, [&] { fork_and_wait(on); }); })), "ns");
  out.add("fork_wait.outside", each(100'000, [&] { fork_and_wait(on); }), "ns");
  out.add(
      "fork_100_wait_100.inside",
      *actors::wait(on.fork([&] { return each(1'000, [&] { fork_many_then_wait(on); }) / 100; })),
      "ns");
  out.add("fork_100_wait_100.outside", each(1'000, [&] { fork_many_then_wait(on); }) / 100, "ns");
  out.add("nested_10000",
          *actors::wait(on.fork([&] { return each(1, [&] { nest(on, 10'000); }) / 10'000; })),
          "ns");
  const at::NoGradGuard no_grad;
  const auto one = at::full({}, 1.0);
  const auto negate = [](const at::Tensor& x) { return at::neg(x); };
  out.add("neg.fork_wait", each(20'000, [&] { (void)actors::wait(actors::fork(on, negate, one)); }),
          "ns");
  out.add("neg.fork_100_wait_100",
          each(500,
               [&] {
                 std::vector<actors::future<at::Tensor>> open;
                 open.reserve(100);
                 for (int i = 0; i < 100; ++i) open.push_back(actors::fork(on, negate, one));
                 for (const auto& forked : open) (void)actors::wait(forked);
               }) /
              100,
          "ns");
  out.add("neg.call", each(20'000, [&] { (void)at::neg(one); }), "ns");
  return 0;
}
