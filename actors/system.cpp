#include "actors/system.hpp"

#include <caf/atom.hpp>

namespace troupe::actors {

system_config::system_config() {
  set("scheduler.policy", caf::atom("sharing"));
  set("scheduler.max-threads", std::size_t{2});
}

}  // namespace troupe::actors
