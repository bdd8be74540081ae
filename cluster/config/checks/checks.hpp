#pragma once

#include <set>
#include <string>
#include <vector>

#include "cluster/config/option.hpp"
#include "cluster/config/registries.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Checks what single values cannot show: that they fit each other, and that named files can be
/// read or written (nothing is created). Where a cut is given and the number of stages is not, the
/// stages follow from the cut. Returns all that is wrong, each beginning with the setting to
/// change. `unknown`: tables of which something is not known, so that nothing is said that depends
/// on them; an empty word among them: of any table.
[[nodiscard]] std::vector<error> errors_together(draft& whole, const registries& known,
                                                 std::set<std::string> unknown);

}  // namespace troupe::cluster
