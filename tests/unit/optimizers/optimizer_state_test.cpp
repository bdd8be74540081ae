#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "engine/state/safetensors.hpp"
#include "optimizers/training/saved_state.hpp"
#include "tests/unit/optimizers/optimizer_cases.hpp"
#include "tests/unit/scratch_folder.hpp"

using namespace troupe;
using namespace troupe::optimizers;
using namespace troupe::testing;
using Catch::Matchers::ContainsSubstring;

namespace {

const std::vector<std::vector<std::int64_t>> state_shapes{{37}, {5, 8}, {3, 2, 2, 2}};
const std::vector<std::string> names{"conv.weight", "fc.weight", "fc.bias"};

void run(const optimizer& entry, const options& chosen, std::vector<at::Tensor>& params,
         state& kept, std::uint64_t first, std::uint64_t last) {
  for (std::uint64_t step = first; step <= last; ++step) {
    numbers values(step);
    gradient_list gradients;
    for (std::size_t i = 0; i < state_shapes.size(); ++i) {
      gradients.emplace_back(values.tensor(state_shapes[i], params[i].scalar_type()));
      if ((step + i) % 3 == 0) gradients.back().reset();
    }
    REQUIRE(entry.step(params, gradients, kept, chosen, step));
  }
}

std::vector<at::Tensor> fresh_params() {
  numbers values(100);
  std::vector<at::Tensor> made;
  for (const auto& shape : state_shapes) made.push_back(values.tensor(shape, at::kFloat));
  return made;
}

named_tensors read(const std::filesystem::path& file) {
  const auto loaded = engine::load_safetensors(file).value();
  named_tensors named;
  for (const auto& [name, tensor] : loaded) named.emplace_back(name, tensor);
  return named;
}

void write(const std::filesystem::path& file, const named_tensors& named) {
  std::vector<engine::named_tensor> tensors;
  for (const auto& [name, tensor] : named) tensors.push_back({name, tensor});
  REQUIRE(engine::save_safetensors(file, tensors));
}

}  // namespace

TEST_CASE("saved beside its parameters, every optimizer's state resumes to the bit") {
  const scratch_folder folder;
  for (const auto& [name, given] : optimizer_cases()) {
    CAPTURE(name, given);
    const optimizer entry = find(name);
    const options chosen = complete(entry, given).value();
    std::vector<at::Tensor> params = fresh_params();
    state kept;
    run(entry, chosen, params, kept, 1, 4);
    named_tensors saved = to_named(kept, names);
    for (std::size_t i = 0; i < names.size(); ++i) saved.emplace_back(names[i], params[i]);
    write(folder.path() / "saved.safetensors", saved);
    run(entry, chosen, params, kept, 5, 9);

    const named_tensors loaded = read(folder.path() / "saved.safetensors");
    std::vector<at::Tensor> resumed(names.size());
    for (const auto& [tensor_name, tensor] : loaded)
      for (std::size_t i = 0; i < names.size(); ++i)
        if (tensor_name == names[i]) resumed[i] = tensor;
    auto resumed_state = from_named(loaded, names).value();
    run(entry, chosen, resumed, resumed_state, 5, 9);
    for (std::size_t i = 0; i < params.size(); ++i) REQUIRE(same_bits(params[i], resumed[i]));
    require_same(kept, resumed_state);
  }
}

TEST_CASE("state that belongs to no parameter is refused by name") {
  const at::Tensor one = fresh_params()[0];
  const named_tensors stray{{"optimizer.exp_avg.fc.wait", one}}, param{{"fc.wait", one}};
  CHECK(from_named(stray, names).error().text ==
        "optimizer state 'optimizer.exp_avg.fc.wait' belongs to no parameter: there is no "
        "'fc.wait'");
  CHECK(from_named(param, names)->empty());
  for (const auto* name : {"state.3.exp_avg", "state.-1.exp_avg", "state.x.exp_avg", "state.0"})
    CHECK_THAT(from_torch(named_tensors{{name, one}}, 3).error().text,
               ContainsSubstring("belongs to none of the 3 parameters"));
}

TEST_CASE("PyTorch's state of sgd, adam and adamw is taken over, and given back") {
  const std::vector<optimizer_case> cases{{"sgd", {{"lr", 0.05}, {"momentum", 0.9}}},
                                          {"adam", {{"lr", 0.01}, {"amsgrad", 1}}},
                                          {"adamw", {{"lr", 0.01}}}};
  for (const auto& [name, given] : cases) {
    CAPTURE(name);
    std::map<std::string, at::Tensor> theirs;
    const auto file = std::filesystem::path(TROUPE_FIXTURES) / (name + "_state.safetensors");
    const named_tensors loaded = read(file);
    for (const auto& [tensor_name, tensor] : loaded) theirs[tensor_name] = tensor.clone();

    auto kept = from_torch(loaded, state_shapes.size()).value();
    const named_tensors back = to_torch(kept);
    std::size_t states = 0;
    for (const auto& [tensor_name, tensor] : theirs) states += tensor_name.starts_with("state.");
    CHECK(back.size() == states);
    for (const auto& [tensor_name, tensor] : back) CHECK(same_bits(tensor, theirs.at(tensor_name)));

    // Steps 4 and 5 of make_optimizer_fixture.py, whose generator has then drawn this much.
    const optimizer entry = find(name);
    const options chosen = complete(entry, given).value();
    numbers values(7);
    std::vector<at::Tensor> params;
    for (std::size_t i = 0; i < state_shapes.size(); ++i)
      static_cast<void>(values.tensor(state_shapes[i], at::kFloat));
    for (std::size_t i = 0; i < state_shapes.size(); ++i)
      params.push_back(theirs.at("param." + std::to_string(i)).clone());
    for (std::uint64_t step = 1; step <= 5; ++step) {
      gradient_list gradients;
      for (std::size_t i = 0; i < state_shapes.size(); ++i) {
        gradients.emplace_back(values.tensor(state_shapes[i], at::kFloat, true));
        if ((step + 2 * i) % 5 == 1) gradients.back().reset();
      }
      if (step > 3) REQUIRE(entry.step(params, gradients, kept, chosen, step));
    }
    for (std::size_t i = 0; i < state_shapes.size(); ++i) {
      const at::Tensor later = theirs.at("later." + std::to_string(i));
      if (name == "sgd")
        CHECK(same_bits(params[i], later));
      else
        CHECK(params[i].allclose(later, 1e-5, 1e-6));
    }
  }
}
