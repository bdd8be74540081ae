# The names that users link (troupe::troupe, and one a folder), and what is installed and packed: the
# libraries, their headers, and the package that find_package(troupe) reads. No LibTorch.

set(troupe_exported troupe_usage)
foreach(folder messages optimizers engine actors cluster)
  get_property(targets DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target ${targets})
    get_target_property(type ${target} TYPE)
    if(type MATCHES "^(STATIC|INTERFACE)_LIBRARY$")
      list(APPEND troupe_exported ${target})
    endif()
  endforeach()
endforeach()
add_library(troupe_troupe INTERFACE)
target_link_libraries(troupe_troupe INTERFACE troupe_cluster)
list(APPEND troupe_exported troupe_troupe)

foreach(target ${troupe_exported})
  string(REGEX REPLACE "^troupe_" "" name ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  add_library(troupe::${name} ALIAS ${target})
endforeach()
if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()

include(CMakePackageConfigHelpers)
set(package_folder lib/cmake/troupe)
install(TARGETS ${troupe_exported} EXPORT troupe ARCHIVE DESTINATION lib)
install(EXPORT troupe NAMESPACE troupe:: DESTINATION ${package_folder} FILE troupe_targets.cmake)
install(DIRECTORY messages optimizers engine actors cluster DESTINATION include/troupe
  FILES_MATCHING PATTERN "*.hpp" PATTERN "schema" EXCLUDE)
configure_package_config_file(.cmake/troupe_config.cmake.in
  ${PROJECT_BINARY_DIR}/troupe-config.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/troupe-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/troupe-config.cmake ${PROJECT_BINARY_DIR}/troupe-config-version.cmake
  .cmake/FindTorch.cmake .cmake/FindCAF.cmake .cmake/troupe_program.cmake
  engine/stage/allocator.cpp
  DESTINATION ${package_folder})
install(FILES LICENSE DESTINATION share/doc/troupe)

# ./dev package
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_NAME troupe)
set(CPACK_PACKAGE_VENDOR "the Troupe authors")
set(CPACK_PACKAGE_CONTACT "the Troupe authors <maintainers@troupe.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Training of neural networks by actors: C++20 libraries")
set(CPACK_PACKAGE_DESCRIPTION
  "Static libraries and headers on CAF, UCX and LibTorch. LibTorch itself comes from PyPI: pip install torch==${Torch_VERSION}.")
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_NAME libtroupe-dev)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
# What its headers and static libraries need of Debian.
string(JOIN ", " CPACK_DEBIAN_PACKAGE_DEPENDS
  libcaf-dev libucx-dev libsodium-dev libxxhash-dev libssl-dev libcapnp-dev libexpected-dev
  libspdlog-dev libfmt-dev libtomlplusplus-dev libjpeg62-turbo-dev libpng-dev zlib1g-dev libjemalloc-dev
  pkg-config)
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES OFF)
include(CPack)
