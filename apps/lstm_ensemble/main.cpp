// An ensemble of bidirectional LSTMs, run in order or forked onto a pool.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "actors/futures/fork.hpp"
#include "apps/lstm_ensemble/ensemble.hpp"
#include "apps/lstm_ensemble/trace.hpp"
#include "messages/base/exit_code.hpp"

namespace {

using namespace troupe;
using namespace troupe::apps;

const std::map<std::string, ensemble_form> forms{{"serial", ensemble_form::serial},
                                                 {"directions", ensemble_form::directions},
                                                 {"models", ensemble_form::models}};

struct options {
  ensemble_shape shape;
  std::string form = "models";
  bool train = false;
  unsigned threads = std::max(1U, std::thread::hardware_concurrency());
  int repeat = 5;
  std::uint64_t seed = 1;
  std::string trace_file;
  std::string json_file;
};

void add_flags(CLI::App& app, options& out) {
  app.set_version_flag("--version", "lstm_ensemble " TROUPE_VERSION);
  app.add_option("--form", out.form,
                 "What is forked: serial (nothing), directions, models [models]")
      ->check(CLI::IsMember(std::vector<std::string>{"serial", "directions", "models"}));
  app.add_flag("--train", out.train, "Run the backward too");
  app.add_option("--models", out.shape.models, "Models [4]")->check(CLI::Range(1, 1024));
  app.add_option("--steps", out.shape.steps, "Time steps, T [50]")->check(CLI::Range(1, 100'000));
  app.add_option("--batch", out.shape.batch, "Sequences, B [50]")->check(CLI::Range(1, 100'000));
  app.add_option("--channels", out.shape.channels, "Input and hidden size, C [1024]")
      ->check(CLI::Range(1, 65'536));
  app.add_option("--threads", out.threads,
                 "Threads of the pool, each with one intra-op thread [cores]")
      ->check(CLI::Range(1, 1024));
  app.add_option("--repeat", out.repeat, "Runs; the first is not counted if there are more [5]")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--seed", out.seed, "Seed of the weights and the input [1]");
  app.add_option("--trace", out.trace_file,
                 "Write the last run's trace (chrome://tracing) to this file");
  app.add_option("--json", out.json_file, "Write one JSON line per run to this file");
}

int report(const error& why, int code) {
  std::fprintf(stderr, "lstm_ensemble: %s\n", why.text.c_str());
  return code;
}

struct file_closer {
  void operator()(std::FILE* file) const noexcept { std::fclose(file); }
};
using file = std::unique_ptr<std::FILE, file_closer>;

int run(const options& chosen) {
  file json;
  if (!chosen.json_file.empty()) {
    json.reset(std::fopen(chosen.json_file.c_str(), "w"));
    if (!json)
      return report({errc::io_failed, "--json: cannot write " + chosen.json_file}, exit_refused);
  }
  (void)at::get_num_threads();
  at::set_num_threads(1);
  const lstm_ensemble ensemble(chosen.shape, chosen.seed, chosen.train);
  const auto& [models, steps, batch, channels] = chosen.shape;
  const auto input = at::randn({steps, batch, channels},
                               at::detail::createCPUGenerator(chosen.seed + 1));  // [T, B, C]
  actors::pool on(actors::tensor_pool(chosen.threads));
  std::vector<double> seconds;
  std::optional<trace> spans;
  for (int i = 0; i < chosen.repeat; ++i) {
    spans.emplace();
    const auto start = trace::clock::now();
    const auto outcome = actors::wait(
        actors::fork(on, [&] { return ensemble.run(on, forms.at(chosen.form), input, *spans); }));
    seconds.push_back(std::chrono::duration<double>(trace::clock::now() - start).count());
    if (!outcome) return report(outcome.error(), exit_failed);
    if (json)
      std::fprintf(json.get(),
                   "{\"form\": \"%s\", \"train\": %s, \"threads\": %u, \"run\": %d, \"seconds\": "
                   "%.6f, \"loss\": %.9g, \"fingerprint\": \"%016" PRIx64 "\"}\n",
                   chosen.form.c_str(), chosen.train ? "true" : "false", chosen.threads, i + 1,
                   seconds.back(), outcome->loss, fingerprint(*outcome));
  }
  if (seconds.size() > 1) seconds.erase(seconds.begin());
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  std::printf("%s%s: %.3f s a run (median of %zu), %u threads\n", chosen.form.c_str(),
              chosen.train ? ", training" : "", *middle, seconds.size(), chosen.threads);
  if (chosen.trace_file.empty()) return 0;
  const auto written = spans->write(chosen.trace_file);
  return written ? 0 : report(written.error(), exit_refused);
}

}  // namespace

int main(int argc, char** argv) {
  options chosen;
  CLI::App app("Runs an ensemble of bidirectional LSTMs, in order or forked onto a pool.");
  add_flags(app, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::ParseError& wrong) {
    return report({errc::bad_config, wrong.what()}, exit_refused);
  }
  return run(chosen);
}
