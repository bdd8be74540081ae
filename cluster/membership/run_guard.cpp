#include "cluster/membership/run_guard.hpp"

#include "messages/log.hpp"

namespace troupe::cluster {

result<interrupt_guard> guard_run(std::atomic<bool>& stop, const std::shared_ptr<workers>& all) {
  return interrupt_guard::install(
      {.on_stop =
           [&stop](int) {
             stop = true;
             log::info("stopping after the steps under way; interrupt again to end at once");
           },
       .on_abort = [all](int) { all->kill(); },
       .on_suspend = [all] { all->suspend(); },
       .on_resume = [all] { all->resume(); }});
}

}  // namespace troupe::cluster
