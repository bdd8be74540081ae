// Measures one step of an optimizer over a large model and over many small tensors, beside a plain
// triad over the same arrays.
//
//   optimizers_bench [--json]

#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>

#include <string>
#include <thread>
#include <vector>

#include "optimizers/algorithms.hpp"
#include "tests/bench/programs/figures.hpp"
#include "tests/flags.hpp"

namespace {

using namespace troupe;
using namespace troupe::bench;

struct workload {
  std::string name;
  std::size_t tensors = 0;
  std::int64_t elements = 0;  ///< Of each.
};

struct contest {
  std::string name;
  std::string optimizer;
  optimizers::options chosen;
  double streams = 0;  ///< Arrays read and arrays written: what a step must move.
};

/// Parameters, gradients and a third array of the same shapes.
struct shard {
  explicit shard(const workload& of) {
    for (std::size_t i = 0; i < of.tensors; ++i) {
      params.push_back(at::randn({of.elements}));
      gradients.emplace_back(at::randn({of.elements}));
      others.push_back(at::randn({of.elements}));
    }
  }

  std::vector<at::Tensor> params;
  std::vector<std::optional<at::Tensor>> gradients;
  std::vector<at::Tensor> others;
};

/// Median seconds of a call; the first two are not counted.
template <class Body>
double median_s(int runs, Body body) {
  std::vector<double> seconds;
  for (int i = 0; i < runs + 2; ++i) {
    const stopwatch watch;
    body();
    if (i >= 2) seconds.push_back(watch.seconds());
  }
  return quantile(seconds, 0.5);
}

void triad(const float* b, const float* c, float* a, std::int64_t count) {
  run_at(best_simd(), [=] {
    for (std::int64_t i = 0; i < count; ++i) a[i] = b[i] + 0.5F * c[i];
  });
}

void triad(shard& over) {
  for (std::size_t i = 0; i < over.params.size(); ++i)
    triad(over.others[i].const_data_ptr<float>(), over.gradients[i]->const_data_ptr<float>(),
          over.params[i].mutable_data_ptr<float>(), over.params[i].numel());
}

/// Seconds of a call on each half, both at once, each on a thread of its own.
template <class Body>
double halves_s(int runs, Body body) {
  const stopwatch watch;
  std::thread other([&] {
    for (int i = 0; i < runs; ++i) body(1);
  });
  for (int i = 0; i < runs; ++i) body(0);
  other.join();
  return watch.seconds() / runs;
}

class contest_runner {
 public:
  explicit contest_runner(const figures& out) : out_(out) {}

  void run(const workload& over, const std::vector<contest>& contests, int runs) {
    shard whole(over);
    const double bytes =
        4.0 * static_cast<double>(over.tensors) * static_cast<double>(over.elements);
    const double triad_s = median_s(runs, [&] { triad(whole); });
    // A store to memory that is not cached reads it first, so a triad moves four arrays.
    const double triad_rate = 4 * bytes / triad_s;
    out_.add(over.name + ".triad_rate", triad_rate / 1e6, "MB/s");
    for (const contest& each : contests) {
      const auto entry = optimizers::built_in().find(each.optimizer).value();
      const auto chosen = optimizers::complete(entry, each.chosen).value();
      optimizers::state kept;
      std::uint64_t step = 0;
      const double seconds = median_s(runs, [&] {
        if (!entry.step(whole.params, whole.gradients, kept, chosen, ++step)) std::abort();
      });
      out_.add(over.name + "." + each.name + "_step", seconds * 1e3, "ms");
      out_.add(over.name + "." + each.name + "_of_triad",
               each.streams * bytes / seconds / triad_rate, "");
    }
  }

  void run_halves(const workload& over, const std::vector<contest>& contests, int runs) {
    workload half = over;
    half.tensors /= 2;
    shard halves[] = {shard(half), shard(half)};
    const auto speedup = [&](const std::string& name, auto body) {
      const auto both = [&] { body(0), body(1); };
      both();
      const double alone = median_s(runs, both);
      out_.add(over.name + "." + name + "_two_shards", alone / halves_s(runs, body), "");
    };
    speedup("triad", [&](int which) { triad(halves[which]); });
    for (const contest& each : contests) {
      const auto entry = optimizers::built_in().find(each.optimizer).value();
      const auto chosen = optimizers::complete(entry, each.chosen).value();
      optimizers::state kept[2];
      speedup(each.name, [&](int which) {
        if (!entry.step(halves[which].params, halves[which].gradients, kept[which], chosen, 1))
          std::abort();
      });
    }
  }

 private:
  const figures& out_;
};

}  // namespace

int main(int argc, char** argv) {
  troupe::tests::flags line("Measures the steps of optimizers");
  bool json = false;
  int runs = 15;
  line.flag("--json", json, "One JSON object a line");
  line.number("--runs", runs, "Steps that are measured", 1, 10'000);
  if (const auto end = line.read(argc, argv)) return *end;

  at::set_num_threads(1);
  const std::vector<contest> contests{
      {"qhm", "qhm", {{"lr", 1e-3}, {"weight_decay", 1e-4}}, 5},
      {"sgd", "sgd", {{"lr", 1e-3}, {"momentum", 0.9}, {"weight_decay", 1e-4}}, 5},
      {"adamw", "adamw", {{"lr", 1e-3}}, 7}};
  const workload large{"160x160000", 160, 160'000}, small{"4000x1000", 4000, 1000};
  const figures out(json);
  contest_runner over(out);
  over.run(large, contests, runs);
  over.run(small, contests, 4 * runs);
  over.run_halves(large, contests, runs);
  return 0;
}
