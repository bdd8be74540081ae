// Writes an optimizer, quasi-hyperbolic momentum (Ma and Yarats, 2019), and fits with it.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <cstdio>
#include <vector>

#include "optimizers/elementwise.hpp"

using namespace troupe;

int main() {
  const auto qhm = [](auto& weight, auto gradient, auto& buffer, auto lr, auto momentum, auto nu) {
    buffer = momentum * buffer + (1 - momentum) * gradient;
    weight -= lr * ((1 - nu) * gradient + nu * buffer);
  };
  optimizers::registry known = optimizers::built_in();
  known.add(optimizers::elementwise("my_qhm",
                                    {{.name = "lr", .fallback = 0.1},
                                     {.name = "momentum", .fallback = 0.9, .most = 1},
                                     {.name = "nu", .fallback = 0.7, .most = 1}},
                                    {"momentum_buffer"}, qhm));

  const auto chosen = known.find("my_qhm");
  if (!chosen) return std::puts(chosen.error().text.c_str()), 1;
  const auto options = optimizers::complete(*chosen, {{"lr", 0.2}});
  if (!options) return std::puts(options.error().text.c_str()), 1;
  const auto random = at::detail::createCPUGenerator(/*seed=*/1);
  const auto wanted = at::randn({1000}, random);
  std::vector<at::Tensor> weights{at::zeros({1000})};
  optimizers::state kept;
  for (std::uint64_t step = 1; step <= 100; ++step) {
    const at::Tensor gradient = weights[0].sub(wanted);  // of half the squared distance
    const auto stepped = chosen->step(weights, {gradient}, kept, *options, step);
    if (!stepped) return std::puts(stepped.error().text.c_str()), 1;
    const double distance = gradient.norm().item<double>();
    if (step % 25 == 0) std::printf("step %d: distance %.6f\n", int(step), distance);
  }
}
