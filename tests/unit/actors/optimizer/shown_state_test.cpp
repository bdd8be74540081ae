// What an optimizer has shown for a checkpoint stays what it was, whatever it does afterwards.

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>

#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <map>
#include <string>

#include "actors/messages/common.hpp"
#include "actors/messages/optimizer.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/optimizer/optimizer_actor.hpp"
#include "actors/system.hpp"
#include "optimizers/optimizer.hpp"

using namespace troupe;

namespace {

/// An optimizer with momentum of one parameter.
class optimizer_of_stage {
 public:
  optimizer_of_stage() {
    const auto momentum = optimizers::built_in().find("sgd").value();
    auto spawned = actors::spawn_optimizer(
        system_, {.name = "stage-0",
                  .parameters = {{"w", parameter}},
                  .optimizer = momentum,
                  .options = optimizers::complete(momentum, {{"momentum", 0.5}}).value()});
    optimizer_ = spawned.value();
  }
  ~optimizer_of_stage() { self_->send_exit(optimizer_, caf::exit_reason::user_shutdown); }
  optimizer_of_stage(const optimizer_of_stage&) = delete;
  optimizer_of_stage& operator=(const optimizer_of_stage&) = delete;

  /// A step with gradients of 1.
  void step(std::uint64_t number) {
    ask<actors::gradients_applied>(actors::apply_gradients{
        .step = number, .learning_rate = 0.5, .gradients = {at::ones_like(parameter)}});
  }

  void replace(const at::Tensor& by) {
    ask<actors::acknowledged>(actors::replace_parameters{.values = {by}});
  }

  /// As its stage asks for it.
  engine::shown_tensors show(bool for_keepers) {
    const actors::copy_state order{.step = 1, .for_keepers = for_keepers};
    auto copied = self_->request(optimizer_, std::chrono::seconds(10), order);
    engine::shown_tensors shown;
    self_->receive([&](const actors::state_shown& what) { shown = what.tensors; });
    copied.receive(
        [&](const actors::state_copied& all) {
          CHECK(all.tensors.size() == (for_keepers ? shown.size() : 0));
        },
        [](const caf::error& why) { FAIL(caf::to_string(why)); });
    return shown;
  }

  const at::Tensor parameter = at::full({700'000}, 4.0);

 private:
  template <class Answer, class Question>
  void ask(const Question& what) {
    self_->request(optimizer_, std::chrono::seconds(10), what)
        .receive([](const Answer&) {}, [](const caf::error& why) { FAIL(caf::to_string(why)); });
  }

  actors::system_config config_;
  caf::actor_system system_{config_};
  caf::scoped_actor self_{system_};
  actors::optimizer_actor optimizer_;
};

std::map<std::string, at::Tensor> read(const engine::shown_tensors& shown) {
  std::map<std::string, at::Tensor> all;
  for (const auto& each : shown) all.emplace(each->form().name, each->read_whole().value());
  return all;
}

}  // namespace

TEST_CASE("What an optimizer has shown stays what it was in later steps") {
  for (const bool for_keepers : {false, true}) {
    optimizer_of_stage at;
    at.step(1);
    const auto first = at.show(for_keepers);
    const auto again = at.show(for_keepers);
    at.step(2);
    at.replace(at::full_like(at.parameter, 9));
    for (const auto& shown : {first, again}) {
      const auto all = read(shown);
      REQUIRE(all.size() == 2);
      CHECK(all.contains("w"));
      for (const auto& [name, tensor] : all)  // its momentum too
        CHECK(at::equal(tensor, at::full_like(at.parameter, name == "w" ? 3.5 : 1)));
    }
    CHECK(at::equal(at.parameter, at::full_like(at.parameter, 9)));
  }
}

TEST_CASE("What an optimizer has shown stays what it was when another replica's values come") {
  optimizer_of_stage at;
  const auto shown = at.show(false);
  at.replace(at::full_like(at.parameter, 9));
  CHECK(at::equal(read(shown).at("w"), at::full_like(at.parameter, 4)));
}
