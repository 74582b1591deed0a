-- Whether all keys are whole numbers from 1 on; holes are allowed, and an empty table is an array.
local next, type, floor = next, type, math.floor
return function(tab)
    for key in next, tab do
        if type(key) ~= "number" or key < 1 or floor(key) ~= key then
            return false
        end
    end
    return true
end
