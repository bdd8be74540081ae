#include <map>
#include <stdexcept>
#include <thread>
#include <utility>

#include "engine/collective/nccl/maker.hpp"
#include "tests/conformance/collective/group_of_ranks.hpp"
#include "tests/fake_nccl/device.hpp"
#include "tests/sim/collective/simulated_ports.hpp"

namespace troupe::tests {
namespace {

c10::Device device_of(std::uint32_t rank) {
  return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(rank)};
}

/// The ranks of one group, by a maker.
class made_group : public group_of_ranks {
 public:
  made_group(std::shared_ptr<const engine::collective_maker> maker, const group_terms& how)
      : maker_(std::move(maker)) {
    const auto invited = maker_->invite(how.ranks, engine::socket_reach::loopback, device_of(0));
    if (!invited) throw std::runtime_error(invited.error().text);
    invitation_ = *invited;
    for (std::uint32_t rank = 0; rank < how.ranks; ++rank) {
      auto joined = maker_->join({.name = "the suite",
                                  .invitation = invitation_,
                                  .rank = rank,
                                  .ranks = how.ranks,
                                  .on = device_of(rank),
                                  .order = how.order});
      if (!joined) throw std::runtime_error(joined.error().text);
      ports_.push_back(std::move(*joined));
    }
  }
  engine::collective_port& operator[](std::uint32_t rank) override { return *ports_.at(rank); }
  void end(std::uint32_t rank) override { ports_.at(rank).reset(); }

 protected:
  std::shared_ptr<const engine::collective_maker> maker_;
  std::string invitation_;
  std::vector<std::shared_ptr<engine::collective_port>> ports_;
};

class nccl_group final : public made_group {
 public:
  explicit nccl_group(const group_terms& how) : made_group(maker_for(how), how) {}
  ~nccl_group() override {
    library().release();  // a test that failed must end all the same
    ports_.clear();
  }
  /// Its device stops in the middle of what it does: a rank whose process is gone says no more.
  void kill(std::uint32_t rank) override { ports_.at(rank).reset(); }
  [[nodiscard]] std::string wrong_uses() const override { return library().wrong_uses(); }

 private:
  static const fake_nccl::controls& library() {
    static const fake_nccl::controls all(TROUPE_FAKE_NCCL);
    return all;
  }
  static std::shared_ptr<const engine::collective_maker> maker_for(const group_terms& how) {
    return std::make_shared<engine::nccl::maker>(engine::nccl::maker_options{
        .places = {.named = TROUPE_FAKE_NCCL},
        .type = c10::DeviceType::PrivateUse1,
        .device_for = [](c10::Device on) -> result<std::shared_ptr<engine::nccl::device>> {
          return std::make_shared<fake_nccl::device>(library(), on.index());
        },
        .waits = {.operation = how.deadline}});
  }
};

class simulated_group final : public made_group {
 public:
  explicit simulated_group(const group_terms& how)
      : simulated_group(std::make_shared<simulated_maker>(
                            simulated_terms{.seed = how.seed, .deadline = how.deadline}),
                        how) {}
  void kill(std::uint32_t rank) override { world_->kill(invitation_, rank); }

 private:
  simulated_group(const std::shared_ptr<simulated_maker>& world, const group_terms& how)
      : made_group(world, how), world_(world) {}

  std::shared_ptr<simulated_maker> world_;
};

}  // namespace

std::vector<implementation> all_implementations() {
  return {{"NCCL, by the NCCL of tests",
           [](const group_terms& how) { return std::make_unique<nccl_group>(how); }},
          {"the simulation",
           [](const group_terms& how) { return std::make_unique<simulated_group>(how); }}};
}

}  // namespace troupe::tests
