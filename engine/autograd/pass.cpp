#include "engine/autograd/pass.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <utility>

#include "engine/base/random.hpp"

namespace troupe::engine {
namespace {

thread_local forward_pass pass_of_thread;

// FNV-1a: std::hash may differ between the machines of a run.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

std::uint64_t random_of(std::uint64_t seed, std::uint64_t step, std::uint32_t microbatch) {
  return splitmix64::combine(splitmix64::combine(seed, step), microbatch);
}

pass_scope::pass_scope(const forward_pass& pass) : before_(std::exchange(pass_of_thread, pass)) {}

pass_scope::~pass_scope() {
  pass_of_thread = before_;
}

const forward_pass& current_pass() {
  return pass_of_thread;
}

at::Generator random_for(std::string_view layer, c10::Device on) {
  const auto seed = splitmix64::combine(pass_of_thread.random, hash_of(layer));
  if (on.is_cpu()) return at::make_generator<at::CPUGeneratorImpl>(seed);
  auto made =
      at::globalContext().getAcceleratorHooksInterface(on.type()).getNewGenerator(on.index());
  made.set_current_seed(seed);
  return made;
}

}  // namespace troupe::engine
