#include "actors/futures/requester.hpp"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <utility>

namespace troupe::actors {
namespace {

/// A type's own name, without namespaces and template arguments' spaces.
std::string plain_name(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> full(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), &std::free);
  const std::string name = status == 0 ? full.get() : type.name();
  const auto end = name.find('<');
  const auto start = name.rfind("::", end);
  return start == std::string::npos ? name : name.substr(start + 2);
}

}  // namespace

requester::requester(caf::actor_system& system, node_names names)
    : inbox_(request_inbox::of(system)), owner_(inbox().enlist(std::move(names))) {}

requester::~requester() {
  inbox().give_up(owner_);
}

error requester::explain(const error& why, const question& asked, const std::string& node) {
  return error_about("a request '" + plain_name(*asked.message) + "' to actor " +
                         std::to_string(asked.target) +
                         (node.empty() ? "" : " of node '" + node + "'"),
                     why);
}

}  // namespace troupe::actors
