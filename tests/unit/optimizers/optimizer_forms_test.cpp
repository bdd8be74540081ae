#include <ATen/ops/ones.h>

#include <catch2/catch_test_macros.hpp>
#include <thread>

#include "optimizers/sweep.hpp"
#include "optimizers/training/squares.hpp"
#include "tests/unit/optimizers/optimizer_cases.hpp"

using namespace troupe;
using namespace troupe::optimizers;
using namespace troupe::testing;

namespace {

const std::vector<std::vector<std::int64_t>> form_shapes{{37}, {5, 8}, {3, 2, 2, 2}, {0}, {}};

/// Parameters, and gradients of which now and then one is missing.
struct gradient_source {
  explicit gradient_source(at::ScalarType type = at::kFloat) : of(type) {
    for (const auto& shape : form_shapes) params.push_back(values.tensor(shape, of));
  }

  gradient_list gradients(std::uint64_t step) {
    gradient_list made;
    for (std::size_t i = 0; i < form_shapes.size(); ++i) {
      made.emplace_back(values.tensor(form_shapes[i], of, true));
      if ((step + i) % 4 == 1) made.back().reset();
    }
    return made;
  }

  at::ScalarType of;
  numbers values{11};
  std::vector<at::Tensor> params;
};

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> made;
  for (const auto& tensor : tensors)
    made.push_back(tensor.defined() ? tensor.clone() : at::Tensor());
  return made;
}

state copies(const state& kept) {
  state made;
  for (const auto& [slot, tensors] : kept) made[slot] = copies(tensors);
  return made;
}

void require_same(const std::vector<at::Tensor>& left, const std::vector<at::Tensor>& right) {
  REQUIRE(left.size() == right.size());
  for (std::size_t i = 0; i < left.size(); ++i) {
    CAPTURE(i);
    REQUIRE(same_bits(left[i], right[i]));
  }
}

void require_step(const optimizer& entry, std::vector<at::Tensor>& params,
                  const gradient_list& gradients, state& kept, const options& chosen,
                  std::uint64_t step) {
  const auto done = entry.step(params, gradients, kept, chosen, step);
  INFO((done ? std::string() : done.error().text));
  REQUIRE(done);
}

}  // namespace

TEST_CASE("a new version has the bits of an update in place, and the old one stays as it was") {
  for (const auto& [name, given] : optimizer_cases())
    for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      CAPTURE(name, given, type);
      const optimizer entry = find(name);
      const options chosen = complete(entry, given).value();
      gradient_source from(type);
      std::vector<at::Tensor> params = copies(from.params);
      state kept;
      version now{copies(from.params), {}};
      for (std::uint64_t step = 1; step <= 7; ++step) {
        const gradient_list gradients = from.gradients(step);
        require_step(entry, params, gradients, kept, chosen, step);
        const std::vector<at::Tensor> old_params = copies(now.params);
        const state old_kept = copies(now.kept);
        const auto next =
            next_version(entry, now.params, gradients, now.kept, chosen, step).value();
        require_same(now.params, old_params);
        testing::require_same(now.kept, old_kept);
        now = next;
        require_same(now.params, params);
        testing::require_same(now.kept, kept);
      }
    }
}

TEST_CASE("a large new version, which is written past the caches, has the same bits too") {
  const auto count = static_cast<std::int64_t>(least_streamed / sizeof(float)) + 131;
  for (const auto& [name, given] : optimizer_cases())
    for (const auto type : {at::kFloat, at::kDouble}) {
      CAPTURE(name, given, type);
      const optimizer entry = find(name);
      const options chosen = complete(entry, given).value();
      numbers values{11};
      const std::vector<at::Tensor> first{values.tensor({count}, type),
                                          values.tensor({count + 1}, type).narrow(0, 1, count)};
      std::vector<at::Tensor> params = copies(first);
      state kept;
      version now{first, {}};
      for (std::uint64_t step = 1; step <= 3; ++step) {
        const gradient_list gradients{values.tensor({count}, type, true),
                                      values.tensor({count}, type, true)};
        require_step(entry, params, gradients, kept, chosen, step);
        now = next_version(entry, now.params, gradients, now.kept, chosen, step).value();
        require_same(now.params, params);
        testing::require_same(now.kept, kept);
      }
    }
}

TEST_CASE("next_version serves an optimizer that has only a step in place") {
  optimizer plain = find("adam");
  plain.next = {};
  const options chosen = complete(plain, {}).value();
  gradient_source from;
  const gradient_list gradients = from.gradients(1);
  const std::vector<at::Tensor> before = copies(from.params);
  const auto ours = next_version(find("adam"), from.params, gradients, {}, chosen, 1);
  const auto theirs = next_version(plain, from.params, gradients, {}, chosen, 1);
  REQUIRE(ours);
  REQUIRE(theirs);
  require_same(from.params, before);
  require_same(ours->params, theirs->params);
  testing::require_same(ours->kept, theirs->kept);
}

TEST_CASE("a new version keeps what requires a gradient, and shares what had none") {
  const optimizer entry = find("sgd");
  const std::vector<at::Tensor> params{at::ones({3}).requires_grad_(), at::ones({3})};
  const auto next = next_version(entry, params, {at::ones({3}), std::nullopt}, {},
                                 complete(entry, {{"lr", 1}}).value(), 1)
                        .value();
  CHECK(next.params[0].requires_grad());
  CHECK(next.params[0].is_leaf());
  CHECK(next.params[1].is_same(params[1]));
}

TEST_CASE("every instruction set gives the same bits, whatever the length and alignment") {
  numbers values(3);
  const at::Tensor param = values.tensor({160}, at::kFloat),
                   gradient = values.tensor({160}, at::kFloat, true);
  for (const auto& [name, given] : optimizer_cases()) {
    const options chosen = complete(find(name), given).value();
    for (const simd level : {simd::avx2, simd::avx512}) {
      if (!has(level)) continue;
      const optimizer at_level = find(name, level), portable = find(name, simd::portable);
      for (std::int64_t count = 0; count <= 70; ++count) {
        CAPTURE(name, given, count, static_cast<int>(level));
        const std::int64_t offset = count % 3;
        const auto cut = [&](const at::Tensor& from) {
          return from.clone().narrow(0, offset, count);
        };
        std::vector<at::Tensor> ours{cut(param)}, theirs{cut(param)};
        state our_state, their_state;
        for (std::uint64_t step = 1; step <= 3; ++step) {
          require_step(at_level, ours, {cut(gradient)}, our_state, chosen, step);
          require_step(portable, theirs, {cut(gradient)}, their_state, chosen, step);
        }
        require_same(ours, theirs);
        testing::require_same(our_state, their_state);
      }
    }
  }
}

TEST_CASE("layouts change no bit") {
  numbers values(5);
  const at::Tensor param = values.tensor({4, 3, 5, 2}, at::kFloat),
                   gradient = values.tensor({4, 3, 5, 2}, at::kFloat);
  const auto last = [](const at::Tensor& t) {
    return t.contiguous(at::MemoryFormat::ChannelsLast);
  };
  const auto gapped = [](const at::Tensor& t) {
    return at::empty({4, 3, 5, 4}).slice(3, 0, 4, 2).copy_(t);
  };
  for (const auto& [name, given] : optimizer_cases()) {
    if (name == "lamb") continue;  // sums its norms in the order of memory
    CAPTURE(name, given);
    const optimizer entry = find(name);
    const options chosen = complete(entry, given).value();
    std::vector<at::Tensor> params{param.clone(), last(param).clone(), param.clone(),
                                   gapped(param)};
    state kept;
    for (std::uint64_t step = 1; step <= 3; ++step)
      require_step(entry, params, {gradient, last(gradient), gapped(gradient), last(gradient)},
                   kept, chosen, step);
    for (std::size_t i = 1; i < params.size(); ++i) {
      CAPTURE(i);
      REQUIRE(same_bits(params[i], params[0]));
    }
    CHECK(params[1].is_contiguous(at::MemoryFormat::ChannelsLast));
  }
}

TEST_CASE("half precision is f32 arithmetic, rounded") {
  for (const auto& [name, given] : optimizer_cases()) {
    if (name == "sgd" || (name == "muon" && !given.contains("orthogonal"))) continue;  // operators
    for (const auto type : {at::kBFloat16, at::kHalf}) {
      CAPTURE(name, given, type);
      const optimizer entry = find(name);
      const options chosen = complete(entry, given).value();
      numbers values(9);
      std::vector<at::Tensor> halves{values.tensor({37}, type)}, wholes{halves[0].to(at::kFloat)};
      const at::Tensor gradient = values.tensor({37}, type);
      state of_halves, of_wholes;
      require_step(entry, halves, {gradient}, of_halves, chosen, 1);
      require_step(entry, wholes, {gradient.to(at::kFloat)}, of_wholes, chosen, 1);
      CHECK(same_bits(halves[0], wholes[0].to(type)));
      for (const auto& [slot, tensors] : of_halves)
        CHECK(same_bits(tensors[0],
                        tensors[0].dim() == 0 ? of_wholes[slot][0] : of_wholes[slot][0].to(type)));
    }
  }
}

TEST_CASE("a missing gradient leaves its parameter and state alone, whatever the optimizer") {
  for (const auto& [name, given] : optimizer_cases()) {
    CAPTURE(name, given);
    const optimizer entry = find(name);
    const options chosen = complete(entry, given).value();
    gradient_source from;
    state kept;
    require_step(entry, from.params, from.gradients(2), kept, chosen, 1);
    const std::vector<at::Tensor> before = copies(from.params);
    const state kept_before = copies(kept);
    require_step(entry, from.params, gradient_list(form_shapes.size()), kept, chosen, 2);
    require_same(from.params, before);
    testing::require_same(kept, kept_before);
  }
}

TEST_CASE("shards on threads of their own give the bits of one after the other") {
  const optimizer entry = find("adamw");
  const options chosen = complete(entry, {}).value();
  numbers values(1);
  std::vector<at::Tensor> whole, gradients;
  for (int i = 0; i < 40; ++i) {
    whole.push_back(values.tensor({100 + i}, at::kFloat));
    gradients.push_back(values.tensor({100 + i}, at::kFloat));
  }
  const auto half = [](const auto& list, int which) {
    const auto middle = list.begin() + 20;
    return which == 0 ? std::vector(list.begin(), middle) : std::vector(middle, list.end());
  };
  std::vector<at::Tensor> shards[] = {copies(half(whole, 0)), copies(half(whole, 1))};
  state kept[2], kept_whole;
  std::vector<std::thread> threads;
  for (const int i : {0, 1})
    threads.emplace_back([&, i] {
      const auto mine = half(gradients, i);
      for (std::uint64_t step = 1; step <= 5; ++step)
        static_cast<void>(entry.step(shards[i], {mine.begin(), mine.end()}, kept[i], chosen, step));
    });
  for (auto& thread : threads) thread.join();
  for (std::uint64_t step = 1; step <= 5; ++step)
    require_step(entry, whole, {gradients.begin(), gradients.end()}, kept_whole, chosen, step);
  require_same(shards[0], half(whole, 0));
  require_same(shards[1], half(whole, 1));
}

TEST_CASE("a sum of squares has the same bits at every level") {
  numbers values(2);
  const at::Tensor all = values.tensor({300}, at::kFloat);
  for (std::int64_t count = 0; count <= 300; count += 7) {
    const float* const data = all.const_data_ptr<float>();
    const double expected = sum_of_squares(simd::portable, data, count);
    CHECK(std::abs(expected -
                   all.narrow(0, 0, count).to(at::kDouble).square().sum().item<double>()) <=
          1e-12 * (1 + expected));
    for (const simd level : {simd::avx2, simd::avx512})
      if (has(level)) CHECK(sum_of_squares(level, data, count) == expected);
  }
}
