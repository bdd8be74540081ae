#include "cluster/membership/run_guard.hpp"

#include <string>
#include <utility>

#include "messages/base/log.hpp"

namespace troupe::cluster {

result<interrupt_guard> guard_run(interruption& stop, const std::shared_ptr<node_launcher>& all,
                                  int checkpoint_signal) {
  const auto on_stop = [&stop](int number) {
    stop.signal = number;
    log::info(std::string(stop.in_steps ? "stopping after the steps under way"
                                        : "stopping before the first step") +
              "; interrupt again to end at once");
  };
  const auto puts_off_abort = [&stop, warned = std::make_shared<bool>(false)](int) {
    if (!stop.saving || std::exchange(*warned, true)) return false;
    log::warning("the weights are being saved; interrupt again to end without them");
    return true;
  };
  const auto on_checkpoint = [&stop](int) {
    stop.checkpoint = true;
    log::info(std::string("a signal asks for a checkpoint: it is written after the ") +
              (stop.in_steps ? "steps under way" : "first step"));
  };
  return interrupt_guard::install({.on_stop = on_stop,
                                   .on_abort = [all](int) { all->kill(); },
                                   .puts_off_abort = puts_off_abort,
                                   .on_suspend = [all] { all->suspend(); },
                                   .on_resume = [all] { all->resume(); },
                                   .other_signal = checkpoint_signal,
                                   .on_other = on_checkpoint});
}

}  // namespace troupe::cluster
