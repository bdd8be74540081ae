// resnet_pipeline with two more models. "small" has little to save, to send and to compare.
// "uneven" is the same model with one layer that a trainer measures as slow: the last one, or the
// first one if the file that TROUPE_UNEVEN names exists; then stages also take longer to build. The
// first stage process that finds the file that TROUPE_HOST_ENDS names removes it and ends its host.
// Before it joins its run, the stage process that TROUPE_STOPPED_STAGE names stops, as by SIGSTOP,
// and the one that TROUPE_HANGING_STAGE names hangs.

#include <ATen/core/Tensor.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <caf/actor_addr.hpp>
#include <caf/send.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "apps/resnet_pipeline/application.hpp"
#include "cluster/membership/stage_node.hpp"
#include "cluster/training/node_run.hpp"
#include "cluster/training/program.hpp"
#include "engine/model/layer.hpp"
#include "tests/multiprocess/recovery/is_stage.hpp"
#include "tests/multiprocess/wrapped_layer.hpp"
#include "tests/small_residual_network.hpp"

namespace {

using namespace troupe;

/// Computes what another layer computes, and takes longer for it.
class slow final : public tests::wrapped_layer {
 public:
  using wrapped_layer::wrapped_layer;

  at::Tensor forward(const at::Tensor& input, bool training) override {
    if (!input.is_meta()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return wrapped().forward(input, training);
  }
};

bool is_first_slow() {
  const char* const file = std::getenv("TROUPE_UNEVEN");
  return file != nullptr && std::filesystem::exists(file);
}

engine::model_blueprint uneven_network(std::int64_t classes, bool is_stage) {
  auto made = tests::small_residual_network(classes);
  const bool first = is_first_slow();
  auto& uneven = first ? made.layers.front() : made.layers.back();
  uneven = [right = uneven, first,
            is_stage](const at::Generator& random) -> std::unique_ptr<engine::layer> {
    if (!is_stage) return std::make_unique<slow>(right(random));
    if (first) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    return right(random);
  };
  return made;
}

bool is_named_in(const char* variable, std::span<const char* const> words) {
  const char* const name = std::getenv(variable);
  const auto is_it = [name](std::string_view word) { return word == name; };
  return name != nullptr && std::ranges::any_of(words, is_it);
}

void stand_still_where_named(std::span<const char* const> words) {
  if (is_named_in("TROUPE_STOPPED_STAGE", words)) ::raise(SIGSTOP);
  while (is_named_in("TROUPE_HANGING_STAGE", words)) ::pause();
}

void end_when_there(const caf::actor_addr& host, const std::filesystem::path& file) {
  std::error_code absent;
  while (!std::filesystem::remove(file, absent))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  caf::anon_send_exit(host, caf::exit_reason::kill);
}

int serve_until_host_ends(const application& program, const char* file, int argc, char** argv) {
  const auto& known = program.info.known;
  const auto spawn = [file, host = cluster::stage_host(known)](
                         caf::actor_system& system, const cluster::joined_node& here,
                         cluster::shut_down_handler on_shut_down) {
    auto spawned = host(system, here, std::move(on_shut_down));
    std::thread(end_when_there, spawned->address(), std::filesystem::path(file)).detach();
    return spawned;
  };
  const auto serve = [&](const cluster::node_options& options) {
    return cluster::serve_as_node(options, known, spawn);
  };
  return cluster::run_program(program.info, {.train = {}, .serve = serve}, argc, argv);
}

}  // namespace

int main(int argc, char** argv) {
  auto program = apps::resnet_application();
  const bool is_stage = tests::is_stage(argc, argv);
  if (is_stage) stand_still_where_named({argv, static_cast<std::size_t>(argc)});
  auto& models = program.info.known.models;
  models["small"] = [](const engine::model_order& order) -> result<engine::model_blueprint> {
    return tests::small_residual_network(order.classes);
  };
  models["uneven"] =
      [is_stage](const engine::model_order& order) -> result<engine::model_blueprint> {
    return uneven_network(order.classes, is_stage);
  };
  const char* const host_ends = std::getenv("TROUPE_HOST_ENDS");
  if (is_stage && host_ends != nullptr)
    return serve_until_host_ends(program, host_ends, argc, argv);
  return troupe::main(argc, argv, program);
}
